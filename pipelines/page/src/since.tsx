// What changed since an earlier run: a row for each slice, with the tests.
import * as format from "./format";
import { Link } from "./link";
import type { Estimate, Metric, Moment, Overview, Since, SinceKind, SinceSlice } from "./model";
import { hashOf } from "./route";
import { Short } from "./short";
import { Term } from "./term";
import { metricOf } from "./verdict";

const WORDS: Record<string, string> = { degraded: "worse", improved: "better" };
const MORE: Record<SinceKind, string> = { worse: "worse", better: "better", new: "new", gone: "gone" };

export function SinceThen({ content, since }: { content: Overview; since: Since }) {
  return (
    <section class="since">
      <h2>Since the earlier run</h2>
      <p>{since.summary}</p>
      {since.biggest && <Biggest content={content} since={since} one={since.biggest} />}
      {since.slices.length > 0 && (
        <p class="legend">
          <Term word="value">The metric on the slice.</Term>, <Term word="delta">The value on the slice minus what it is
          compared with in the same run: all examples, or the earlier model on the same slice.</Term>,{" "}
          <Term word="new">The delta is significant in this run, and was not in the earlier one.</Term>,{" "}
          <Term word="gone">The delta was significant in the earlier run, and is not in this one.</Term>,{" "}
          <Term word="q">
            The p-value of the test that nothing changed, after the correction for all compared slices.
          </Term>
        </p>
      )}
      <Part content={content} since={since} kinds={["worse", "better"]} title="that changed significantly" />
      <Part
        content={content}
        since={since}
        kinds={["new", "gone"]}
        title="that crossed the threshold of significance, without a significant change"
      />
      {since.slices.length > 0 && <p class="legend">{since.corrected_for}</p>}
    </section>
  );
}

function Biggest({ content, since, one }: { content: Overview; since: Since; one: SinceSlice }) {
  const metric = metricOf(content, since.metric);
  const own = one.value_change?.significant ? one.value_change.difference : undefined;
  const change = own ?? one.difference;
  if (change?.value == null) return null;
  const ends =
    own && one.then?.value != null && one.now?.value != null
      ? `, from ${format.value(metric, one.then.value)} to ${format.value(metric, one.now.value)}`
      : "";
  return (
    <p class="biggest">
      The biggest significant change:{" "}
      {one.now ? (
        <Link to={hashOf("slice", one.slice_id)}>
          <Short text={one.name} />
        </Link>
      ) : (
        <Short text={one.name} />
      )}
      {" "}is {one.kind}: {own ? metric.name : `its delta of ${metric.name}`} changed by{" "}
      <b>{format.difference(metric, change.value)}</b> ({format.differences(metric, change.lo, change.hi)}){ends}.
    </p>
  );
}

interface PartGiven {
  content: Overview;
  since: Since;
  kinds: SinceKind[];
  title: string;
}

function Part({ content, since, kinds, title }: PartGiven) {
  const shown = since.slices.filter((one) => kinds.includes(one.kind));
  if (!shown.length) return null;
  const left = kinds.filter((kind) => since.more[kind] > 0);
  const all = shown.length + left.reduce((sum, kind) => sum + since.more[kind], 0);
  return (
    <details>
      <summary>
        {format.plural(all, "slice")} {title}
      </summary>
      <div class="scrolled" tabIndex={0} role="region" aria-label={`Slices ${title}`}>
        <table>
          <thead>
            <tr>
              <th scope="col">What</th>
              <th scope="col">Slice</th>
              <th scope="col">Value then</th>
              <th scope="col">Value now</th>
              <th scope="col">Change of the value, with its interval</th>
              <th scope="col">Change of the delta, with its interval</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((one) => (
              <Row key={`${one.slice_id} ${one.metric}`} one={one} metric={metricOf(content, one.metric ?? since.metric)} />
            ))}
          </tbody>
        </table>
      </div>
      {left.length > 0 && (
        <p class="legend">
          In changelist.json only: {left.map((kind) => `${format.count(since.more[kind])} ${MORE[kind]}`).join(", ")}.
        </p>
      )}
    </details>
  );
}

function Row({ one, metric }: { one: SinceSlice; metric: Metric }) {
  const own = one.value_change;
  return (
    <tr>
      <td>{what(one).join(", ")}</td>
      <th scope="row">
        {one.now ? (
          <Link to={hashOf("slice", one.slice_id)}>
            <Short text={one.name} />
          </Link>
        ) : (
          <Short text={one.name} />
        )}
      </th>
      <td>{moment(metric, one.then, one.missing)}</td>
      <td>{moment(metric, one.now, one.missing)}</td>
      <td>{tested(metric, own?.difference, own?.p_adjusted)}</td>
      <td>{tested(metric, one.difference, one.p_adjusted)}</td>
    </tr>
  );
}

function tested(metric: Metric, change: Estimate | undefined, q: number | undefined): string {
  if (change?.value == null) return "not tested";
  const text = `${format.difference(metric, change.value)} (${format.differences(metric, change.lo, change.hi)})`;
  return `${text}, ${q == null ? "not tested" : `q ${q.toPrecision(2)}`}`;
}

function what(one: SinceSlice): string[] {
  const words: string[] = one.status === "new" || one.status === "gone" ? [one.status] : [];
  if (one.significant) words.push(WORDS[one.direction] ?? "changed");
  else if (one.value_change?.significant) words.push(`value ${WORDS[one.value_change.direction] ?? "changed"}`);
  return words;
}

function moment(metric: Metric, at: Moment | undefined, missing: string | undefined): string {
  if (!at) return missing ?? "not known";
  if (at.value == null) return "undefined";
  const { lo, hi } = at.value_interval ?? {};
  return `${format.value(metric, at.value)} (${format.interval(metric, lo, hi)}), n = ${format.count(at.n)}`;
}
