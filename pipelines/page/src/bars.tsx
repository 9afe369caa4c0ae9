// Findings as bars: from what is expected to the value, with the interval of the difference.
import { scaleLinear } from "d3-scale";

import * as format from "./format";
import { Link } from "./link";
import type { Metric, Slice } from "./model";
import { hashOf } from "./route";
import { Short } from "./short";

export interface Row {
  rank: number;
  id: string;
  slice: Slice | undefined;
  value: number;
  expected: number;
  lo: number | null;
  hi: number | null;
  isWorse: boolean;
  text: string;
}

const WIDTH = 600;
const HEIGHT = 30;
const EDGE = 12;

export function Bars({ rows, metric, isChange }: { rows: Row[]; metric: Metric; isChange: boolean }) {
  const ends = rows.flatMap((one) => [one.value, one.expected, one.lo ?? one.value, one.hi ?? one.value]);
  const x = scaleLinear()
    .domain([Math.min(...ends), Math.max(...ends)])
    .nice(5)
    .range([EDGE, WIDTH - EDGE]);
  const shown = (number: number) => (isChange ? format.difference : format.value)(metric, number);
  // No value lies beyond the metric's range.
  const [least, most] = isChange ? [null, null] : metric.range;
  const inRange = (at: number) => (least == null || at >= least - 1e-9) && (most == null || at <= most + 1e-9);
  const ticks = x.ticks(4).filter(inRange);
  const step = ticks.length > 1 ? (ticks[1] as number) - (ticks[0] as number) : 1;
  return (
    <ol class="bars">
      {rows.map((row) => (
        <li key={row.id}>
          <div class="who">
            <span class="rank">{row.rank}</span>
            <Link to={hashOf("slice", row.id)}>
              <Conditions slice={row.slice} id={row.id} />
            </Link>
            <Phrases slice={row.slice} />
          </div>
          <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={row.text} preserveAspectRatio="none">
            {ticks.map((at) => (
              <line key={at} class="grid" x1={x(at)} x2={x(at)} y1={0} y2={HEIGHT} />
            ))}
            <rect
              class={row.isWorse ? "bar worse" : "bar better"}
              x={Math.min(x(row.value), x(row.expected))}
              width={Math.max(1, Math.abs(x(row.value) - x(row.expected)))}
              y={7}
              height={16}
            />
            {row.lo != null && row.hi != null && (
              <path class="whisker" d={`M${x(row.lo)},9V21M${x(row.lo)},15H${x(row.hi)}M${x(row.hi)},9V21`} />
            )}
            <line class="expected" x1={x(row.expected)} x2={x(row.expected)} y1={2} y2={28} />
          </svg>
          <p class="numbers">
            <strong>{shown(row.value)}</strong> {row.text}
          </p>
        </li>
      ))}
      <li class="axis" aria-hidden="true">
        <div class="who" />
        <svg height={22}>
          {ticks.map((at) => (
            <text key={at} x={`${(100 * x(at)) / WIDTH}%`} y={15} text-anchor={anchor(x(at))}>
              {format.tick(metric, at, step, isChange)}
            </text>
          ))}
        </svg>
        <p class="numbers">{isChange && format.isShare(metric) ? "points" : ""}</p>
      </li>
    </ol>
  );
}

function anchor(at: number): "start" | "middle" | "end" {
  return at < 60 ? "start" : at > WIDTH - 60 ? "end" : "middle";
}

/** What describes a discovered group, whose condition alone says nothing. */
export function Phrases({ slice }: { slice: Slice | undefined }) {
  return slice?.phrases.length ? <span class="phrases">{slice.phrases.join(", ")}</span> : null;
}

export function Conditions({ slice, id }: { slice: Slice | undefined; id: string }) {
  if (!slice) return <span class="chip">{id}</span>;
  const parts = slice.conditions.length ? slice.conditions : [slice.name];
  const isRenamed = slice.conditions.length > 0 && slice.name !== slice.conditions.join(" & ");
  return (
    <span class="chips">
      {isRenamed && <b>{slice.name}</b>}
      {parts.map((one, at) => (
        <span class="chip" key={at}>
          <Short text={one} />
        </span>
      ))}
    </span>
  );
}
