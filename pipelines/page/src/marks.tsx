// The one way in which numbers are drawn: on an axis, with their intervals.
import { scaleLinear } from "d3-scale";

import * as format from "./format";
import type { Metric } from "./model";

export type Tone = "worse" | "better" | "none";

/** A value with its interval, as rows, tiles and plots draw it. */
export interface Measured {
  value: number;
  lo?: number | null | undefined;
  hi?: number | null | undefined;
}

export interface Axis {
  /** Where a number lies, in percent of the width. */
  at: (number: number) => number;
  ticks: number[];
  text: (tick: number) => string;
}

const known = (number: number | null | undefined): number[] =>
  number == null || !Number.isFinite(number) ? [] : [number];

/** An axis that holds all values with their intervals, and what else is named. */
export function axisOf(metric: Metric, shown: Measured[], isDifference: boolean, also: number[] = []): Axis {
  const ends = [...also, ...shown.flatMap(({ value, lo, hi }) => [value, ...known(lo), ...known(hi)])].filter(Number.isFinite);
  const low = ends.length ? Math.min(...ends) : 0;
  const high = ends.length ? Math.max(...ends) : 1;
  const scale = scaleLinear()
    .domain(low === high ? [low - 0.01, high + 0.01] : [low, high])
    .nice(4)
    .range([0, 100]);
  // No value lies beyond the metric's range.
  const [least, most] = isDifference ? [null, null] : metric.range;
  const isInRange = (at: number) => (least == null || at >= least - 1e-9) && (most == null || at <= most + 1e-9);
  const ticks = scale.ticks(4).filter(isInRange);
  const step = ticks.length > 1 ? (ticks[1] as number) - (ticks[0] as number) : 1;
  return { at: (number) => Math.max(-2, Math.min(102, scale(number))), ticks, text: (tick) => format.tick(metric, tick, step, isDifference) };
}

/** The ticks of an axis, as the head of a column. */
export function AxisHead({ axis, title }: { axis: Axis; title: string }) {
  return (
    <>
      <span class="axis-title">{title}</span>
      <svg class="axis" height={22} role="presentation">
        {axis.ticks.map((tick) => (
          <g key={tick}>
            <text x={`${axis.at(tick)}%`} y={12} text-anchor="middle">
              {axis.text(tick)}
            </text>
            <line class="grid" x1={`${axis.at(tick)}%`} x2={`${axis.at(tick)}%`} y1={17} y2={22} />
          </g>
        ))}
      </svg>
    </>
  );
}

interface MarkGiven {
  axis: Axis;
  shown: Measured | null;
  tone: Tone;
  label: string;
  /** A bar begins here; without it, a point is drawn. */
  from?: number;
  /** Where a dashed line stands. */
  guide?: number | undefined;
  height?: number;
}

/** A bar or a point with the whisker of its interval. */
export function Mark({ axis, shown, tone, label, from, guide, height = 28 }: MarkGiven) {
  const place = (number: number) => `${axis.at(number)}%`;
  const middle = height / 2;
  const upright = (at: number, y1: number, y2: number, kind: string) => (
    <line class={kind} x1={place(at)} x2={place(at)} y1={y1} y2={y2} />
  );
  const { value = NaN, lo, hi } = shown ?? {};
  const hasWhisker = lo != null && hi != null && Number.isFinite(lo) && Number.isFinite(hi);
  return (
    <svg class="mark" height={height} role="img" aria-label={label}>
      {axis.ticks.map((tick) => (
        <g key={tick}>{upright(tick, -12, height + 12, "grid")}</g>
      ))}
      {from !== undefined && upright(from, -12, height + 12, "zero")}
      {guide !== undefined && upright(guide, -12, height + 12, "guide")}
      {Number.isFinite(value) && from !== undefined && (
        <rect
          class={`bar ${tone}`}
          x={`${Math.min(axis.at(value), axis.at(from))}%`}
          width={`${Math.max(0.3, Math.abs(axis.at(value) - axis.at(from)))}%`}
          y={middle - 5}
          height={10}
        />
      )}
      {hasWhisker && (
        <>
          <line class="whisker" x1={place(lo)} x2={place(hi)} y1={middle} y2={middle} />
          {upright(lo, middle - 4, middle + 4, "whisker")}
          {upright(hi, middle - 4, middle + 4, "whisker")}
        </>
      )}
      {Number.isFinite(value) && from === undefined && <circle class={`bar ${tone}`} cx={place(value)} cy={middle} r={5} />}
    </svg>
  );
}

const SHAPES = {
  worse: <path d="M7 12.5 1 2.5h12z" fill="currentColor" />,
  failed: <path d="M4.4.8h5.2l3.6 3.6v5.2l-3.6 3.6H4.4L.8 9.6V4.4z" fill="currentColor" />,
  passed: <circle cx="7" cy="7" r="6.2" fill="currentColor" />,
  better: <path d="M7 1.5 13 11.5H1z" fill="currentColor" />,
  none: <circle cx="7" cy="7" r="4.5" fill="none" stroke="currentColor" stroke-width="1.5" />,
};

export type State = keyof typeof SHAPES;

/** A state by its shape alone, where a word is beside it. */
export function Shape({ state }: { state: State }) {
  return (
    <svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true">
      {SHAPES[state]}
    </svg>
  );
}

/** A state by its shape and a word. */
export function Badge({ state, children }: { state: State; children: string }) {
  return (
    <span class={`badge ${state}`}>
      <Shape state={state} />
      {children}
    </span>
  );
}

/** A share as a short bar beside its number. */
export function Progress({ share }: { share: number }) {
  return (
    <span class="progress">
      <svg width="48" height="6" aria-hidden="true">
        <rect class="track" width="48" height="6" />
        <rect class="part" width={48 * share} height="6" />
      </svg>
      {format.share(share)}
    </span>
  );
}
