// What changed since an earlier run: a row for each slice, with the tests.
import * as format from "./format";
import { Link } from "./link";
import type { Metric, Moment, Overview, Since, SinceSlice } from "./model";
import { hashOf } from "./route";
import { Term } from "./term";
import { metricOf } from "./verdict";

const WORDS: Record<string, string> = { degraded: "worse", improved: "better" };

export function SinceThen({ content, since }: { content: Overview; since: Since }) {
  return (
    <section class="since">
      <h2>Since the earlier run</h2>
      <p>{since.summary}</p>
      {since.slices.length > 0 && (
        <details>
          <summary>{format.plural(since.slices.length, "slice")} that changed, with their tests</summary>
          <p class="legend">
            Each change has a{" "}
            <Term word="q">
              The p-value of the test that nothing changed, after the correction for all compared slices.
            </Term>
            . Where only the value changed, and not the slice's delta, that is the change shown.
          </p>
          <div class="scrolled" tabIndex={0} role="region" aria-label="Slices that changed">
            <table>
              <thead>
                <tr>
                  <th scope="col">What</th>
                  <th scope="col">Slice</th>
                  <th scope="col">Then</th>
                  <th scope="col">Now</th>
                  <th scope="col">Change, with its interval</th>
                  <th scope="col">q</th>
                </tr>
              </thead>
              <tbody>
                {since.slices.map((one) => (
                  <Row key={`${one.slice_id} ${one.metric}`} one={one} metric={metricOf(content, one.metric ?? since.metric)} />
                ))}
              </tbody>
            </table>
          </div>
          <p class="legend">
            {since.corrected_for}
            {since.more > 0 && ` ${format.plural(since.more, "more slice")} that changed: in changelist.json.`}
          </p>
        </details>
      )}
    </section>
  );
}

function Row({ one, metric }: { one: SinceSlice; metric: Metric }) {
  const own = one.value_change;
  const isValue = !one.significant && own?.significant === true;
  const change = isValue ? own.difference : one.difference;
  const q = isValue ? own.p_adjusted : one.p_adjusted;
  return (
    <tr>
      <td>{what(one).join(", ")}</td>
      <th scope="row">
        {one.now ? <Link to={hashOf("slice", one.slice_id)}>{one.name}</Link> : one.name}
      </th>
      <td>{moment(metric, one.then, one.missing)}</td>
      <td>{moment(metric, one.now, one.missing)}</td>
      <td>
        {change?.value == null
          ? "not tested"
          : `${isValue ? "value" : "delta"} ${format.difference(metric, change.value)} (${format.differences(metric, change.lo, change.hi)})`}
      </td>
      <td>{q == null ? "none: not tested" : q.toPrecision(2)}</td>
    </tr>
  );
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
