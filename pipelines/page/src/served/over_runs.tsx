// A slice's value over the runs of the folder that is served, with its interval; gaps are shown as such.
import { useEffect, useState } from "preact/hooks";

import { above, sliceSections } from "../extensions";
import * as format from "../format";
import type { Metric, Overview } from "../model";
import { primary } from "../verdict";
import { post } from "./api";
import { Moments } from "./moments";

interface Moment {
  name: string;
  created_at: string;
  n?: number;
  value?: number | null;
  value_low?: number | null;
  value_high?: number | null;
  significant?: boolean;
  missing?: string;
}

/** Whether the page is that of one run of a folder. */
const isRun = () => /^\/runs\/[^/]+\/$/.test(location.pathname);

function OverRuns({ content, id }: { content: Overview; id: string }) {
  const metric = primary(content);
  const [moments, hold] = useState<Moment[] | null>(null);
  const [failed, say] = useState("");
  useEffect(() => {
    if (!isRun()) return;
    const stop = new AbortController();
    post<Moment[]>("history", { slice_id: id, metric: metric.key }, stop.signal).then(
      (found) => !stop.signal.aborted && hold(found),
      (error: unknown) => !stop.signal.aborted && say(error instanceof Error ? error.message : String(error)),
    );
    return () => stop.abort();
  }, [id]);
  if (!isRun()) return null;
  return (
    <section class="over-runs">
      <h2>Over the runs</h2>
      {failed ? (
        <p role="alert">{failed}</p>
      ) : moments ? (
        <Drawn moments={moments} metric={metric} />
      ) : (
        <p role="status">The other runs are being looked up.</p>
      )}
    </section>
  );
}

function Drawn({ moments, metric }: { moments: Moment[]; metric: Metric }) {
  const known = moments.filter((one) => one.value != null).length;
  return (
    <>
      <Moments
        moments={moments.map((one) => ({ ...one, low: one.value_low, high: one.value_high, isSure: one.significant }))}
        metric={metric}
        label={`${metric.name} of this slice in ${format.plural(known, "run")}; the table below has the numbers`}
        width={640}
        height={220}
        left={70}
      />
      <p class="legend">With its 95% interval; the point is filled where the slice is significant.</p>
      <div class="scrolled" tabIndex={0} role="region" aria-label="The slice over the runs">
        <table>
          <thead>
            <tr>
              <th scope="col">Run</th>
              <th scope="col">Made</th>
              <th scope="col">n</th>
              <th scope="col">{metric.name}, 95% interval</th>
              <th scope="col">Significant</th>
            </tr>
          </thead>
          <tbody>
            {moments.map((one) => (
              <tr key={one.name}>
                <th scope="row">{one.name}</th>
                <td>{format.date(one.created_at)}</td>
                {one.value == null ? (
                  <td colSpan={3}>{one.missing ?? "undefined"}</td>
                ) : (
                  <>
                    <td>{format.count(one.n ?? 0)}</td>
                    <td>
                      {format.value(metric, one.value)} ({format.interval(metric, one.value_low, one.value_high)})
                    </td>
                    <td>{one.significant ? "yes" : "no"}</td>
                  </>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

sliceSections.push({ component: OverRuns });
if (isRun()) above.push({ title: "All runs", address: "../../" });
