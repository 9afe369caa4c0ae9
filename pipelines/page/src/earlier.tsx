// With earlier data: why a metric moved, and which features drifted.
import * as format from "./format";
import { Link } from "./link";
import { AxisHead, axisOf, Badge, Mark, type Measured } from "./marks";
import type { EarlierData, Estimate, FeatureDrift, Metric, Overview, WhyMoved } from "./model";
import { hashOf } from "./route";
import { Table } from "./table";
import { metricOf } from "./verdict";

export function Earlier({ content, earlier }: { content: Overview; earlier: EarlierData }) {
  return (
    <>
      {earlier.moved.map((moved) => (
        <Why key={moved.metric} content={content} moved={moved} />
      ))}
      {earlier.drift.length > 0 && <Drift drift={earlier.drift} />}
    </>
  );
}

interface Part {
  name: string;
  id?: string | null | undefined;
  note: string;
  change: Measured | null;
  isSum: boolean;
}

function Why({ content, moved }: { content: Overview; moved: WhyMoved }) {
  const metric = metricOf(content, moved.metric);
  const parts = partsOf(moved);
  const axis = axisOf(metric, parts.flatMap(({ change }) => change ?? []), true, [0]);
  const shown = (number: number) => format.difference(metric, number).replace(" points", "");
  return (
    <section class="why">
      <h2>
        Why did it move{content.earlier_data && content.earlier_data.moved.length > 1 && `: ${metric.name}`}
      </h2>
      <p class="note">
        {metric.name} went from {format.value(metric, moved.then)} to {format.value(metric, moved.now)}. New kinds of examples, the
        mix of the data and the model add up to the change.
        {!moved.mix && " The data sets are too different to tell mix and model apart."}
      </p>
      <Table
        label={`Why ${metric.name} moved`}
        class="parts"
        keyOf={({ name }) => name}
        groups={[{ rows: parts }]}
        columns={[
          { head: "Part", kind: "name", cell: (part) => <Name part={part} /> },
          { head: "What", kind: "text", name: "", cell: ({ note }) => <span class="note">{note}</span> },
          {
            head: <AxisHead axis={axis} title={`Part of the change${format.isShare(metric) ? ", points" : ""}, 95% interval`} />,
            kind: "plot",
            cell: ({ change, isSum, name }) => (
              <Mark axis={axis} shown={change} from={0} tone={toneOf(metric, change, isSum)} label={`${name}: ${change ? shown(change.value) : "not known"}`} />
            ),
          },
          { head: "Change", kind: "number", cell: ({ change }) => <b>{change ? shown(change.value) : "–"}</b> },
        ]}
      />
    </section>
  );
}

function Name({ part: { name, id, isSum } }: { part: Part }) {
  if (isSum) return <b>{name}</b>;
  return <span class="inset">{id ? <Link to={hashOf("slice", id)}>{name}</Link> : name}</span>;
}

/** A part is for the worse or the better where its interval says so. */
function toneOf(metric: Metric, change: Measured | null, isSum: boolean) {
  if (!isSum || change?.lo == null || change.hi == null || change.lo * change.hi <= 0) return "none";
  return change.value > 0 === metric.higher_is_better ? "better" : "worse";
}

function partsOf(moved: WhyMoved): Part[] {
  const measured = (change: Estimate | null | undefined): Measured | null =>
    change?.value == null ? null : { value: change.value, lo: change.lo, hi: change.hi };
  const within = (parts: WhyMoved["by_mix"]): Part[] =>
    parts.map(({ name, slice_id, change, value, share_then, share_now }) => ({
      name,
      id: slice_id,
      note: value && share_then != null && share_now != null ? `${value === name ? "" : `${value}: `}${format.share(share_then)} → ${format.share(share_now)}` : "",
      change: measured(change),
      isSum: false,
    }));
  return [
    {
      name: "New kinds of examples",
      note: `${format.share(moved.new_share)} of the examples${moved.new_values.length ? `: ${moved.new_values.join(", ")}` : ""}`,
      change: { value: moved.new_kinds },
      isSum: true,
    },
    { name: "The mix of the data", note: "more or less of what was hard before", change: measured(moved.mix), isSum: true },
    ...within(moved.by_mix),
    { name: "The model", note: "on the same kinds of examples", change: measured(moved.model), isSum: true },
    ...within(moved.by_model),
  ];
}

function Drift({ drift }: { drift: FeatureDrift[] }) {
  const drifted = drift.filter(({ significant }) => significant).length;
  const most = Math.max(...drift.map(({ stability_index: index }) => index), 0.1);
  const list = (word: string, values: string[]) => values.length > 0 && `; ${word}: ${values.join(", ")}`;
  return (
    <section class="drift">
      <h2>
        {format.count(drifted)} of {format.plural(drift.length, "feature")} {drifted === 1 ? "is" : "are"} distributed differently
      </h2>
      <Table
        label="Drift of the features"
        keyOf={({ feature }) => feature}
        groups={[{ rows: drift }]}
        columns={[
          { head: "Feature", kind: "name", cell: ({ feature }) => feature },
          {
            head: "Found",
            name: "",
            cell: ({ significant, stability_index: index }) => (
              <Badge state={significant && index >= 0.1 ? "worse" : "none"}>
                {significant ? (index >= 0.1 ? "drifted much" : "drifted a little") : "no drift found"}
              </Badge>
            ),
          },
          {
            head: "Changed most",
            cell: ({ value, share_then: then, share_now: now, new_values: fresh, gone_values: gone }) => (
              <>
                {value}: {format.share(then)} → {format.share(now)}
                {list("new", fresh)}
                {list("gone", gone)}
              </>
            ),
          },
          {
            head: "Stability index",
            kind: "number",
            cell: ({ stability_index: index }) => (
              <span class="progress">
                <svg width="48" height="6" aria-hidden="true">
                  <rect class="track" width="48" height="6" />
                  <rect class="part" width={(48 * Math.max(0, index)) / most} height="6" />
                </svg>
                {index.toFixed(3)}
              </span>
            ),
          },
          { head: "q", kind: "number", cell: ({ p_adjusted: q }) => format.probability(format.log(q)) },
        ]}
      />
    </section>
  );
}
