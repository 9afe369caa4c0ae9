// A value over runs, with its intervals: a line that joins neighbours, and a gap where a run has no value.
import { scaleLinear } from "d3-scale";

import * as format from "../format";
import type { Metric } from "../model";

export interface Moment {
  name: string;
  value?: number | null;
  low?: number | null | undefined;
  high?: number | null | undefined;
  /** Whether the point is filled, and whether it is a square of a run that failed. */
  isSure?: boolean | undefined;
  hasFailed?: boolean | undefined;
}

interface Given {
  moments: Moment[];
  metric: Metric;
  label: string;
  width: number;
  height: number;
  left: number;
}

function shortened(name: string): string {
  return name.length > 24 ? `${name.slice(0, 23)}…` : name;
}

export function Moments({ moments, metric, label, width, height, left }: Given) {
  const ends = moments.flatMap(({ value, low, high }) => (value == null ? [] : [value, low ?? value, high ?? value]));
  if (!ends.length) return null;
  const y = scaleLinear()
    .domain([Math.min(...ends), Math.max(...ends)])
    .nice(4)
    .range([height - 30, 16]);
  const ticks = y.ticks(4);
  const step = ticks.length > 1 ? (ticks[1] as number) - (ticks[0] as number) : 1;
  const x = (at: number) => left + ((at + 0.5) * (width - left)) / moments.length;
  const line = moments
    .map(({ value }, at) => (value == null ? "" : `${at > 0 && moments[at - 1]?.value != null ? "L" : "M"}${x(at)},${y(value)}`))
    .join("");
  return (
    <svg class="moments" viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label}>
      {ticks.map((tick) => (
        <g key={tick}>
          <line class="grid" x1={left} x2={width} y1={y(tick)} y2={y(tick)} />
          <text x={left - 8} y={y(tick) + 5} text-anchor="end">
            {format.tick(metric, tick, step, false)}
          </text>
        </g>
      ))}
      <path class="over" d={line} />
      {moments.map(({ name, value, low, high, isSure, hasFailed }, at) =>
        value == null ? (
          <text key={name} x={x(at)} y={height / 2} text-anchor="middle">
            –
          </text>
        ) : (
          <g key={name}>
            {low != null && high != null && <line class="whisker" x1={x(at)} x2={x(at)} y1={y(low)} y2={y(high)} />}
            {hasFailed ? (
              <rect class="moment failed" x={x(at) - 4.5} y={y(value) - 4.5} width={9} height={9} />
            ) : (
              <circle class={isSure ? "moment sure" : "moment"} cx={x(at)} cy={y(value)} r={moments.length > 20 ? 3 : 5} />
            )}
          </g>
        ),
      )}
      {(moments.length > 1 ? [0, moments.length - 1] : [0]).map((at) => (
        <text key={at} x={x(at)} y={height - 8} text-anchor={at ? "end" : "start"}>
          {shortened(moments[at]?.name ?? "")}
        </text>
      ))}
    </svg>
  );
}
