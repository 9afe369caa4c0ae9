// The first view: the verdict, how much, where; then how it was found out.
import { useState } from "preact/hooks";

import { Chips, Phrases } from "./chips";
import { Earlier } from "./earlier";
import { isServed } from "./extensions";
import * as format from "./format";
import { Link } from "./link";
import { AxisHead, axisOf, Badge, Mark, Progress, type Measured } from "./marks";
import type { Change, Finding, FindingModel, KnownSlice, Metric, Overview as Content, Slice } from "./model";
import { hashOf } from "./route";
import { SinceThen } from "./since";
import type { Store } from "./store";
import { Table } from "./table";
import { Term } from "./term";
import { asText, leadOf, metricOf, modelText, noticeable, outsideOf, referenceOf, sliceOf, testsOf, verdictOf } from "./verdict";

// So many findings are shown at least; others once the list holds this share of what exceeds expectation.
const LEAST_SHOWN = 12;
const EXCESS = 0.9;
// Slices of a known slice that are linked.
const MOST_KNOWN = 3;

export function Overview({ content, store }: { content: Content; store: Store | null }) {
  const { state, word, title } = verdictOf(content, store);
  const { gate } = content;
  return (
    <main>
      <div class={content.metrics.length === 1 ? "verdict single" : "verdict"}>
        <div>
          <div class="verdict-line">
            <Badge state={state}>{word}</Badge>
            <h1 tabIndex={-1}>{title}</h1>
          </div>
          <p class="lead">{leadOf(content)}</p>
          {gate && gate.reasons.length > 1 && (
            <ol class="reasons" aria-label="Why it fails, the surest first">
              {gate.reasons.map((reason) => (
                <li key={reason}>{reason}</li>
              ))}
            </ol>
          )}
        </div>
        <div class="tiles">
          {content.metrics.map((metric) => (
            <Tile key={metric.key} content={content} metric={metric} />
          ))}
        </div>
      </div>
      <Findings content={content} />
      {content.known && <Known content={content} known={content.known} />}
      {content.metrics.map((metric) => (
        <Nearest key={metric.key} content={content} metric={metric} />
      ))}
      {content.earlier_data && <Earlier content={content} earlier={content.earlier_data} />}
      {content.since && <SinceThen content={content} since={content.since} />}
      <Copy content={content} />
      <Facts content={content} />
    </main>
  );
}

function Tile({ content, metric }: { content: Content; metric: Metric }) {
  const change = content.global.find((whole) => whole.metric === metric.key);
  const tests = testsOf(content, metric);
  if (change?.after.value == null) {
    return (
      <section class="tile" aria-label={metric.name}>
        <h2>{metric.name}</h2>
        <p>undefined{change?.reason && `: ${change.reason}`}</p>
      </section>
    );
  }
  const { after, before, delta } = change;
  const isChange = before !== undefined && delta?.value != null;
  const { value, lo, hi } = isChange ? delta : after;
  const shown: Measured = { value: value as number, lo, hi };
  const outside = content.comparison === "overall" ? outsideOf(content, metric) : undefined;
  const axis = axisOf(metric, [shown], isChange, isChange ? [0] : outside === undefined ? [] : [outside]);
  const tone = isChange && change.significant ? (change.direction === "degraded" ? "worse" : "better") : "none";
  const found = content.findings.filter((finding) => finding.metric === metric.key && finding.direction === "worse").length;
  const worse = found ? format.plural(found, "group") : format.plural(tests?.degraded ?? 0, "slice");
  const interval = format.interval(metric, after.lo, after.hi);
  return (
    <section class="tile" aria-label={metric.name}>
      <div class="tile-head">
        <h2>
          {metric.name}
          {!metric.higher_is_better && <small> lower is better</small>}
        </h2>
        {tests && !tests.blind && (
          <Badge state={tests.degraded ? "worse" : "none"}>{tests.degraded ? `${worse} worse` : "no slice worse"}</Badge>
        )}
      </div>
      <p class="tile-value">
        <strong>{format.value(metric, after.value as number)}</strong>{" "}
        {before?.value == null ? `95% interval ${interval}` : `was ${format.value(metric, before.value)}`}
      </p>
      {isChange && (
        <p class={`tile-change ${tone}`}>
          <b>{format.difference(metric, shown.value)}</b> ({format.differences(metric, lo, hi)})
        </p>
      )}
      <Mark
        axis={axis}
        shown={shown}
        tone={tone}
        {...(isChange ? { from: 0 } : {})}
        guide={outside}
        label={isChange ? `change ${format.difference(metric, shown.value)}` : `${format.value(metric, shown.value)}, ${interval}`}
      />
      <AxisHead axis={axis} title="" />
      <p class="note">{tests?.blind ? `No slice could be tested: ${tests.blind}.` : tests && `${format.plural(tests.tested, "slice")} tested, ${format.count(tests.significant)} significant`}
        {outside !== undefined && `; dashed: ${format.value(metric, outside)} outside the groups`}
      </p>
    </section>
  );
}

/** What is worse comes first, and the first metric before others. */
function ordered(content: Content): FindingModel[] {
  const place = (model: FindingModel) =>
    content.metrics.findIndex((metric) => metric.key === model.metric) * 2 + (model.direction === "worse" ? 0 : 1);
  return [...content.finding_models].sort((a, b) => place(a) - place(b));
}

interface Row {
  key: string;
  rank?: number | undefined;
  slice: Slice | undefined;
  id: string;
  metric: Metric;
  value: number | undefined;
  before: number | undefined;
  expected: number | undefined;
  shown: Measured | null;
  tone: "worse" | "better" | "none";
  n: number;
  held?: number | undefined;
  q?: number | undefined;
  more: string;
}

function findingRow(content: Content, finding: Finding): Row {
  const metric = metricOf(content, finding.metric);
  const slice = sliceOf(content, finding.slice_id);
  const change = slice?.changes.find((other) => other.metric === finding.metric);
  const { difference, low, high } = finding.corrected;
  const isChange = content.comparison === "baseline";
  return {
    key: `${finding.metric} ${finding.direction} ${finding.rank}`,
    rank: finding.rank,
    slice,
    id: finding.slice_id,
    metric,
    value: isChange ? change?.after.value : finding.value,
    before: finding.before ?? change?.before?.value,
    expected: finding.expected,
    shown: { value: difference, lo: low, hi: high },
    tone: finding.direction,
    n: finding.n,
    held: finding.held_share,
    more: [`observed ${format.difference(metric, finding.difference)}`, confirmedText(metric, finding)].filter(Boolean).join("; "),
  };
}

/** The same on the reserved examples, or how many these are; nothing where none were reserved. */
function confirmedText(metric: Metric, { confirmed }: Finding): string {
  if (!confirmed) return "";
  const { examples, difference, low, high } = confirmed;
  const reserved = format.plural(examples, "reserved example");
  if (difference == null) return `not measured on ${reserved}`;
  return `on ${reserved} ${format.difference(metric, difference)} (${format.differences(metric, low, high)})`;
}

function changeRow(content: Content, id: string, name: string, change: Change, slice?: Slice): Row {
  const { delta } = change;
  return {
    key: `${change.metric} ${id}`,
    slice: slice ?? { slice_id: id, name, conditions: name.split(" & ").map((text) => ({ text })), phrases: [], share: 0, n: change.n, changes: [] },
    id,
    metric: metricOf(content, change.metric),
    value: change.after.value,
    before: change.before?.value,
    expected: referenceOf(change),
    shown: delta?.value == null ? null : { value: delta.value, lo: delta.lo, hi: delta.hi },
    tone: change.significant ? (change.direction === "degraded" ? "worse" : "better") : "none",
    n: change.n,
    q: change.p_adjusted,
    more: "",
  };
}

interface ListGiven {
  content: Content;
  label: string;
  lists: { title?: string; rows: Row[] }[];
  axisTitle: string;
}

/** Slices with their differences, on one axis. */
function SliceRows({ content, label, lists, axisTitle }: ListGiven) {
  const rows = lists.flatMap((list) => list.rows);
  const first = rows[0];
  if (!first) return null;
  const isBaseline = content.comparison === "baseline";
  const isFound = rows.some(({ rank }) => rank !== undefined);
  const isShare = format.isShare(first.metric);
  const unit = isShare ? ", %" : "";
  const names = new Set(rows.map(({ metric }) => metric.name));
  const axis = axisOf(first.metric, rows.flatMap(({ shown }) => shown ?? []), true, [0]);
  const bare = (metric: Metric, number: number | undefined) =>
    number == null ? "–" : format.value(metric, number).replace("%", "");
  const change = (metric: Metric, number: number | undefined) =>
    number == null ? "–" : format.difference(metric, number).replace(" points", "");
  const has = (known: (row: Row) => unknown) => rows.some((row) => known(row) != null);
  const value = names.size === 1 ? first.metric.name : "Value";
  return (
    <Table<Row>
      label={label}
      class={`findings${has((row) => row.held) ? " held" : ""}`}
      keyOf={(row) => row.key}
      groups={lists.map(({ title, rows: listed }) => ({ title, rows: listed }))}
      columns={[
        isFound && { head: <span class="unseen">Rank</span>, kind: "rank", cell: ({ rank }) => rank ?? "" },
        {
          head: isFound ? "Group" : "Slice",
          kind: "name",
          cell: ({ slice, id }) => (
            <>
              <Link to={hashOf("slice", id)}>
                <Chips conditions={slice?.conditions ?? [{ text: id }]} {...(slice ? { name: slice.name } : {})} />
              </Link>{" "}
              <Phrases phrases={slice?.phrases ?? []} />
              {content.known?.some(({ slices }) => slices.includes(id)) && <span class="note">known</span>}
            </>
          ),
        },
        has((row) => row.before) && {
          head: `${isBaseline ? "Before" : "Then"}${unit}`,
          kind: "number",
          cell: ({ metric, before }) => bare(metric, before),
        },
        { head: has((row) => row.before) ? "Now" : `${value}${unit}`, kind: "number", cell: (row) => bare(row.metric, row.value) },
        isFound
          ? {
              head: (
                <Term word={isBaseline ? "Expected change" : "Expected"}>
                  From the findings above it; for the first, {isBaseline ? "the change" : "the value"} over all examples.
                </Term>
              ),
              name: "Expected",
              kind: "number",
              cell: ({ metric, expected }) => (isBaseline ? change(metric, expected) : bare(metric, expected)),
            }
          : !has((row) => row.before) && { head: "Overall", kind: "number", cell: ({ metric, expected }) => bare(metric, expected) },
        {
          head: <AxisHead axis={axis} title={`${axisTitle}${isShare ? ", points" : ""}, 95% interval`} />,
          kind: "plot",
          cell: ({ metric, shown, tone, more }) => (
            <Mark
              axis={axis}
              shown={shown}
              tone={tone}
              from={0}
              label={
                shown
                  ? `${format.difference(metric, shown.value)} (${format.differences(metric, shown.lo, shown.hi)})${more && `, ${more}`}`
                  : "no difference is known"
              }
            />
          ),
        },
        {
          head: <span class="unseen">Difference</span>,
          name: "Difference",
          kind: "number",
          cell: ({ metric, shown, more }) => <b title={more}>{change(metric, shown?.value)}</b>,
        },
        { head: "Examples", kind: "number", cell: ({ metric, n, rank }) => (rank && metric.counted ? <span title={metric.counted}>{format.count(n)}</span> : format.count(n)) },
        has((row) => row.held) && {
          head: `${isShare ? "Errors" : "Loss"} so far`,
          kind: "number",
          cell: ({ held }) => (held == null ? "–" : <Progress share={held} />),
        },
        has((row) => row.q) && { head: "q", kind: "number", cell: ({ q }) => format.probability(format.log(q)) },
      ]}
    />
  );
}

/** How many findings are shown: until they hold most of what exceeds expectation. */
export function shownOf(findings: Finding[]): number {
  const excess = findings.map(({ corrected, n }) => Math.abs(corrected.difference) * n);
  const all = excess.reduce((sum, part) => sum + part, 0);
  let sum = 0;
  const enough = excess.findIndex((part) => (sum += part) >= EXCESS * all);
  return Math.max(LEAST_SHOWN, enough + 1);
}

function Findings({ content }: { content: Content }) {
  const [isWhole, unfold] = useState(false);
  const isBaseline = content.comparison === "baseline";
  const models = ordered(content);
  const ofModel = (model: FindingModel) =>
    content.findings.filter(({ metric, direction }) => metric === model.metric && direction === model.direction);
  const several = models.filter((model) => ofModel(model).length > 0).length > 1;
  let folded = 0;
  const lists = models.map((model) => {
    const metric = metricOf(content, model.metric);
    const all = ofModel(model);
    const count = isWhole ? all.length : Math.min(all.length, shownOf(all));
    folded += all.length - count;
    const rows = all.slice(0, count).map((finding) => findingRow(content, finding));
    const surest = rows.length ? [] : surestRows(content, model);
    const title = several || surest.length ? `${metric.name}, ${model.direction}${surest.length ? ": the surest; they may overlap" : ""}` : undefined;
    return { metric, ...(title ? { title } : {}), rows: [...rows, ...surest], reason: !all.length && model.reason ? `${metric.name}: ${model.reason}.` : "" };
  });
  // Of another unit is another axis.
  const units = [lists.filter(({ metric }) => format.isShare(metric)), ...lists.filter(({ metric }) => !format.isShare(metric)).map((list) => [list])];
  const isFound = content.findings.length > 0;
  return (
    <section aria-label="Findings">
      {units.map((unit, at) => (
        <SliceRows
          key={at}
          content={content}
          label={at ? `Findings, ${unit[0]?.metric.name}` : "Findings"}
          lists={unit.filter(({ rows }) => rows.length)}
          axisTitle={isBaseline ? "Change against expected" : "Difference"}
        />
      ))}
      {folded > 0 && (
        <p>
          <button type="button" onClick={() => unfold(true)}>
            Show {format.plural(folded, "more finding")}
          </button>
        </p>
      )}
      {isFound && (
        <p class="note">
          Differences from what is expected, corrected for selecting the slice; the observed one is what a difference shows when
          it is pointed at.{content.metrics.some(({ counted }) => counted) && " Examples are those that the metric counts."}
        </p>
      )}
      {lists.map(({ reason, metric }) => reason && <p key={`${metric.key} ${reason}`} class="note">No findings: {reason}</p>)}
    </section>
  );
}

/** Without findings, the slices that differ most surely in a direction. */
function surestRows(content: Content, model: FindingModel): Row[] {
  const isWorse = model.direction === "worse";
  return (content.worst[model.metric] ?? []).flatMap((id) => {
    const slice = sliceOf(content, id);
    const change = slice?.changes.find(({ metric }) => metric === model.metric);
    if (!slice || !change?.significant || (change.direction === "degraded") !== isWorse) return [];
    return changeRow(content, id, slice.name, change, slice);
  });
}

/** What a run that finds nothing worse can say: what came nearest, and what it would have noticed. */
function Nearest({ content, metric }: { content: Content; metric: Metric }) {
  const tests = testsOf(content, metric);
  const misses = tests?.nearest ?? [];
  const falls = tests?.noticeable ?? [];
  if (!misses.length && !falls.length) return null;
  const of = content.metrics.length > 1 ? `: ${metric.name}` : "";
  const axis = axisOf(metric, falls.map(({ fall }) => ({ value: fall })), true, [0]);
  return (
    <div class="nearest">
      {misses.length > 0 && (
        <section class="misses">
          <h2>Closest to significantly worse{of}</h2>
          <p class="note">None is: differences this large are expected by chance among so many slices.</p>
          <SliceRows
            content={content}
            label={`Closest to significantly worse${of}`}
            lists={[{ rows: misses.map(({ slice_id, name, change }) => changeRow(content, slice_id, name, change)) }]}
            axisTitle="Difference"
          />
        </section>
      )}
      {falls.length > 0 && (
        <section class="noticed">
          <h2>Smallest fall noticed{of}</h2>
          <p class="note">{noticeable(content, metric)} A smaller one could have passed unseen.</p>
          <Table
            label={`Smallest fall noticed${of}`}
            keyOf={({ n }) => String(n)}
            groups={[{ rows: falls }]}
            columns={[
              { head: "Examples", kind: "name", cell: ({ n }) => (n == null ? "all" : format.count(n)) },
              {
                head: <AxisHead axis={axis} title={format.isShare(metric) ? "Points" : metric.name} />,
                kind: "plot",
                cell: ({ fall }) => <Mark axis={axis} shown={{ value: fall }} tone="none" from={0} label={format.size(metric, fall)} />,
              },
              { head: "Fall", kind: "number", cell: ({ fall }) => <b>{format.size(metric, fall)}</b> },
            ]}
          />
        </section>
      )}
    </div>
  );
}

/** What is known to be worse, and what it is in this run. */
function Known({ content, known }: { content: Content; known: KnownSlice[] }) {
  return (
    <section aria-label="Known slices">
      <h2>Known slices</h2>
      <ul>
        {known.map(({ line, slices }) => (
          <li key={line}>
            {line.replace("Known: ", "")}
            {slices.slice(0, MOST_KNOWN).map((id) => (
              <span key={id}>
                {" "}
                <Link to={hashOf("slice", id)}>{sliceOf(content, id)?.name ?? id}</Link>
              </span>
            ))}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Facts({ content }: { content: Content }) {
  const { dataset, earlier_data: earlier } = content;
  return (
    <div class="closed">
      <details>
        <summary>What was compared</summary>
        <dl>
          <dt>Data</dt>
          <dd>
            {dataset.name}, {format.plural(dataset.n, "example")}
          </dd>
          {earlier && (
            <>
              <dt>Earlier data</dt>
              <dd>
                {earlier.uri.join(", ")}, {format.plural(earlier.n, "example")}
              </dd>
            </>
          )}
          {dataset.label && (
            <>
              <dt>Label</dt>
              <dd>{dataset.label}</dd>
            </>
          )}
          <dt>{content.models.length > 1 ? "Models" : "Model"}</dt>
          <dd>{content.models.map((model) => modelText(content, model)).join(", ")}</dd>
          <dt>Made</dt>
          <dd>
            {format.date(content.created_at)} by slicebeam {content.tool_version}, {content.command}
            {content.revision > 0 && `, revision ${content.revision}`}
          </dd>
        </dl>
      </details>
      <Notes title="Warnings and notes" notes={content.notes} />
      <Notes title="Not in this page" notes={content.left_out} />
    </div>
  );
}

function Notes({ title, notes }: { title: string; notes: string[] }) {
  if (!notes.length) return null;
  return (
    <details>
      <summary>{title}</summary>
      <ul>
        {notes.map((note, at) => (
          <li key={at}>{note}</li>
        ))}
      </ul>
    </details>
  );
}

function Copy({ content }: { content: Content }) {
  const [came, say] = useState("");
  const [isShown, show] = useState(false);
  const text = asText(content);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied.");
    } catch {
      // A page in a frame or a mail program may have no clipboard.
      show(true);
      say("This page can't write to the clipboard: copy the text below.");
    }
  };
  return (
    <div class="copy">
      <button type="button" onClick={() => void copy()}>
        Copy as text
      </button>
      <span role="status">{came}</span>
      {isServed() && (
        <span class="note">
          This address works in this browser only: <code>slicebeam report</code> writes a page that can be sent.
        </span>
      )}
      {isShown && <textarea readOnly aria-label="The overview as text" rows={12} value={text} />}
    </div>
  );
}
