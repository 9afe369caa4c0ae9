// What changed since an earlier run: a row for each slice, with the tests.
import * as format from "./format";
import { Link } from "./link";
import type { Estimate, Metric, Moment, Overview, Since, SinceKind, SinceSlice } from "./model";
import { hashOf } from "./route";
import { Short } from "./short";
import type { Store } from "./store";
import { Term } from "./term";
import { metricOf, sinceSentence, WORDS } from "./verdict";

const MORE: Record<SinceKind, string> = { worse: "worse", better: "better", new: "new", gone: "gone" };

export function SinceThen({ content, since }: { content: Overview; since: Since }) {
  return (
    <section class="since">
      <h2>Since the earlier run of {format.date(since.created_at)}</h2>
      <Changed content={content} since={since} />
      <Biggest content={content} since={since} />
      {since.slices.length > 0 && (
        <p class="legend">
          Below, <Term word="value">The metric on the slice.</Term> and{" "}
          <Term word="q">
            The p-value of the test that nothing changed, after the correction for all compared slices.
          </Term>{" "}
          are of the slice.
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

/** What changed over all examples, and on how many slices, of each metric. */
export function Changed({ content, since, isBrief }: { content: Overview; since: Since; isBrief?: boolean }) {
  return (
    <>
      {since.counts.map((one) => (
        <p key={one.metric}>
          {sinceSentence(content, since, one)}
          {!isBrief && <Deltas one={one} />}
        </p>
      ))}
    </>
  );
}

function Deltas({ one }: { one: Since["counts"][number] }) {
  return (
    <>
      {" "}
      The{" "}
      <Term word="delta">
        The value on the slice minus what it is compared with in the same run: all examples, or the earlier model on the
        same slice.
      </Term>{" "}
      is significantly worse than then on {format.count(one.worse)} and better on {format.count(one.better)};{" "}
      {format.count(one.new)} {one.new === 1 ? "is" : "are"}{" "}
      <Term word="new">The delta is significant in this run, and was not in the earlier one.</Term> and{" "}
      {format.count(one.gone)} <Term word="gone">The delta was significant in the earlier run, and is not in this one.</Term>.
    </>
  );
}

/** How one slice changed since an earlier run. */
export function SliceSince({ content, store, id }: { content: Overview; store: Store; id: string }) {
  const { since } = content;
  if (!since) return null;
  const known = store.since.get(id) ?? [];
  return (
    <section class="since">
      <h2>Since the earlier run of {format.date(since.created_at)}</h2>
      {known.map((one) => (
        <p key={one.metric}>{sentence(metricOf(content, one.metric ?? since.metric), one)}</p>
      ))}
      {known.length > 0 ? (
        <p class="legend">{since.corrected_for}</p>
      ) : (
        <p>
          The document says nothing of this slice: it lists slices that changed significantly, that became or ceased to be
          significant, and those that both runs report.
        </p>
      )}
    </section>
  );
}

function sentence(metric: Metric, one: SinceSlice): string {
  const own = one.value_change;
  const parts = [`${metric.name} then: ${moment(metric, one.then, one.missing)}; now: ${moment(metric, one.now, one.missing)}.`];
  if (own) parts.push(`${verdict("The value", own)}: ${tested(metric, own.difference, own.p_adjusted)}.`);
  if (one.difference?.value != null) {
    parts.push(`${verdict("The delta", one)}: ${tested(metric, one.difference, one.p_adjusted)}.`);
  }
  if (!own && one.difference?.value == null) parts.push("The change was not tested.");
  if (one.status === "new") parts.push("The delta is significant now, and was not then.");
  if (one.status === "gone") parts.push("The delta was significant then, and is not now.");
  return parts.join(" ");
}

function verdict(what: string, change: { significant: boolean; direction: string }): string {
  return change.significant
    ? `${what} is significantly ${WORDS[change.direction] ?? "changed"}`
    : `${what} did not change significantly`;
}

/** The biggest significant change for the worse, and that for the better. */
export function Biggest({ content, since, base = "" }: BiggestGiven) {
  return (
    <>
      {(["worse", "better"] as const).map((kind) => {
        const one = since.biggest[kind];
        return one && <BiggestOf key={kind} content={content} since={since} one={one} base={base} />;
      })}
    </>
  );
}

function BiggestOf({ content, since, one, base }: Required<BiggestGiven> & { one: SinceSlice }) {
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
      The biggest significant change for the {one.kind}:{" "}
      {one.now ? (
        <Link to={`${base}${hashOf("slice", one.slice_id)}`}>
          <Short text={one.name} />
        </Link>
      ) : (
        <Short text={one.name} />
      )}
      , where {own ? metric.name : `the delta of ${metric.name}`} changed by <b>{format.difference(metric, change.value)}</b> (
      {format.differences(metric, change.lo, change.hi)}){ends}.
    </p>
  );
}

interface BiggestGiven {
  content: Overview;
  since: Since;
  /** The address of the page that has the slice; empty for this one. */
  base?: string;
}

interface PartGiven {
  content: Overview;
  since: Since;
  kinds: SinceKind[];
  title: string;
}

function Part({ content, since, kinds, title }: PartGiven) {
  const shown = since.slices.filter((one) => one.kind && kinds.includes(one.kind));
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
  return `${text}, ${q == null ? "not tested" : `q ${format.probability(format.log(q))}`}`;
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
