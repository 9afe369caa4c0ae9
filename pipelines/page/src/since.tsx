// What changed since an earlier run: a row for each slice, then and now, with the tests.
import * as format from "./format";
import { Link } from "./link";
import type { Estimate, Metric, Moment, Overview, Since, SinceSlice } from "./model";
import { hashOf } from "./route";
import { Short } from "./short";
import type { Store } from "./store";
import { Table } from "./table";
import { metricOf, sinceSentence, WORDS } from "./verdict";

// The run whose delta crossed the threshold of significance; the word "new" is of a slice against those above it.
const CROSSED = { new: "significant now", gone: "significant then", stays: "", neither: "" };

export function SinceThen({ content, since }: { content: Overview; since: Since }) {
  const firsts = since.slices.filter((slice) => !slice.like);
  const alike = since.slices.length - firsts.length;
  return (
    <section class="since">
      <h2>Since the earlier run of {format.date(since.created_at)}</h2>
      <Changed content={content} since={since} />
      {since.slices.length > 0 && (
        <details>
          <summary>{format.plural(since.slices.length + since.more, "slice")} changed</summary>
          <Changes content={content} since={since} slices={firsts} />
          <p class="note">
            {since.corrected_for}
            {alike > 0 && ` ${format.count(alike)} that hold mostly the same examples as a row above are left out.`}
            {since.more > 0 && ` ${format.count(since.more)} more are in changelist.json.`}
          </p>
        </details>
      )}
    </section>
  );
}

/** What changed over all examples, and on how many slices, of each metric. */
function Changed({ content, since }: { content: Overview; since: Since }) {
  return (
    <>
      {since.counts.map((counts) => (
        <p key={counts.metric}>{sinceSentence(content, since, counts)}</p>
      ))}
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
      {known.length > 0 ? (
        <>
          <Changes content={content} since={since} slices={known} />
          <p class="note">{since.corrected_for}</p>
        </>
      ) : (
        <p>
          The document says nothing of this slice: it lists slices that changed significantly, that became or ceased to be
          significant, and those that both runs report.
        </p>
      )}
    </section>
  );
}

function Changes({ content, since, slices }: { content: Overview; since: Since; slices: SinceSlice[] }) {
  const ofSlice = ({ metric }: SinceSlice) => metricOf(content, metric ?? since.metric);
  return (
    <div class="scrolled" tabIndex={0} role="region" aria-label="Changed slices">
      <Table<SinceSlice>
        label="Changed slices"
        class="changed"
        keyOf={(slice) => `${slice.slice_id} ${slice.metric}`}
        groups={[{ rows: slices }]}
        columns={[
          { head: "What", cell: what },
          {
            head: "Slice",
            kind: "name",
            cell: ({ slice_id: id, name, now }) =>
              now ? (
                <Link to={hashOf("slice", id)}>
                  <Short text={name} />
                </Link>
              ) : (
                <Short text={name} />
              ),
          },
          { head: "Then", cell: (slice) => moment(ofSlice(slice), slice.then, slice.missing) },
          { head: "Now", cell: (slice) => moment(ofSlice(slice), slice.now, slice.missing) },
          {
            head: "Change of the value",
            cell: (slice) => tested(ofSlice(slice), slice.value_change?.difference, slice.value_change?.p_adjusted),
          },
          { head: "Change of the delta", cell: (slice) => tested(ofSlice(slice), slice.difference, slice.p_adjusted) },
        ]}
      />
    </div>
  );
}

function tested(metric: Metric, change: Estimate | undefined, q: number | undefined): string {
  if (change?.value == null) return "not tested";
  const text = `${format.difference(metric, change.value)} (${format.differences(metric, change.lo, change.hi)})`;
  return `${text}, ${q == null ? "not tested" : `q ${format.probability(format.log(q))}`}`;
}

function what(slice: SinceSlice): string {
  const words = [CROSSED[slice.status]];
  if (slice.significant) words.push(WORDS[slice.direction] ?? "changed");
  else if (slice.value_change?.significant) words.push(`value ${WORDS[slice.value_change.direction] ?? "changed"}`);
  return words.filter(Boolean).join(", ") || "no change found";
}

function moment(metric: Metric, at: Moment | undefined, missing: string | undefined): string {
  if (!at) return missing ?? "not known";
  if (at.value == null) return "undefined";
  const { lo, hi } = at.value_interval ?? {};
  return `${format.value(metric, at.value)} (${format.interval(metric, lo, hi)}), n = ${format.count(at.n)}`;
}
