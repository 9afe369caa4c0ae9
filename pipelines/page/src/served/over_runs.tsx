// A slice's value over the runs of the folder that is served, with its interval; gaps are shown as such.
import { scaleLinear } from "d3-scale";
import { useEffect, useState } from "preact/hooks";

import { above, sliceSections } from "../extensions";
import * as format from "../format";
import type { Metric, Overview } from "../model";
import { primary } from "../verdict";
import { post } from "./api";

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

const WIDTH = 640;
const HEIGHT = 220;
const LEFT = 70;

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

function shortened(name: string): string {
  return name.length > 24 ? `${name.slice(0, 23)}…` : name;
}

function Drawn({ moments, metric }: { moments: Moment[]; metric: Metric }) {
  const known = moments.filter((one) => one.value != null);
  const ends = known.flatMap((one) => [one.value, one.value_low ?? one.value, one.value_high ?? one.value] as number[]);
  const y = scaleLinear()
    .domain([Math.min(...ends), Math.max(...ends)])
    .nice(4)
    .range([HEIGHT - 30, 16]);
  const ticks = y.ticks(4);
  const step = ticks.length > 1 ? (ticks[1] as number) - (ticks[0] as number) : 1;
  const x = (at: number) => LEFT + ((at + 0.5) * (WIDTH - LEFT)) / moments.length;
  // A line joins neighbours only: a run without a value leaves a gap.
  const path = moments
    .map((one, at) =>
      one.value == null ? "" : `${at > 0 && moments[at - 1]?.value != null ? "L" : "M"}${x(at)},${y(one.value)}`,
    )
    .join("");
  return (
    <>
      {known.length > 0 && (
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          role="img"
          aria-label={`${metric.name} of this slice in ${format.plural(known.length, "run")}; the table below has the numbers`}
        >
          {ticks.map((tick) => (
            <g key={tick}>
              <line class="grid" x1={LEFT} x2={WIDTH} y1={y(tick)} y2={y(tick)} />
              <text x={LEFT - 8} y={y(tick) + 5} text-anchor="end">
                {format.tick(metric, tick, step, false)}
              </text>
            </g>
          ))}
          <path class="over" d={path} />
          {moments.map((one, at) =>
            one.value == null ? (
              <text key={one.name} x={x(at)} y={HEIGHT / 2} text-anchor="middle">
                –
              </text>
            ) : (
              <g key={one.name}>
                {one.value_low != null && one.value_high != null && (
                  <line class="whisker" x1={x(at)} x2={x(at)} y1={y(one.value_low)} y2={y(one.value_high)} />
                )}
                <circle class={one.significant ? "moment sure" : "moment"} cx={x(at)} cy={y(one.value)} r={5} />
              </g>
            ),
          )}
          {[0, moments.length - 1].map((at) => (
            <text key={at} x={x(at)} y={HEIGHT - 8} text-anchor={at ? "end" : "start"}>
              {shortened(moments[at]?.name ?? "")}
            </text>
          ))}
        </svg>
      )}
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
