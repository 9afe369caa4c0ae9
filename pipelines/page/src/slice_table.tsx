// A table of slices of which only the rows in sight are made.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import type { Numbers } from "./columns";
import type { Filter, SortName } from "./filter";
import * as format from "./format";
import { Link } from "./link";
import type { Metric, Overview } from "./model";
import { hashOf } from "./route";
import { Short } from "./short";
import { isWorse } from "./store";

// Rows are of one height, so that only those in sight need be made; style.css has the same.
const ROW = 64;
const NARROW_ROW = 156;
const BEYOND = 6;

interface Given {
  content: Overview;
  metric: Metric;
  filter: Filter;
  change: (update: (next: URLSearchParams) => void) => void;
  /** How many rows there are. */
  count: number;
  /** Another one for other rows: the table then begins at the top. */
  rows: unknown;
  children: (at: number) => ComponentChildren;
  /** What is said besides where no row is left. */
  none?: ComponentChildren;
  /** Is called with the rows in sight. */
  seen?: (first: number, last: number) => void;
}

export function SliceTable({ content, metric, filter, change, count, rows, children, seen, none }: Given) {
  const frame = useRef<HTMLDivElement>(null);
  const [top, scrolled] = useState(0);
  const [size, measured] = useState({ height: 600, row: ROW });
  useEffect(() => {
    const measure = () => {
      const row = matchMedia("(max-width: 760px)").matches ? NARROW_ROW : ROW;
      measured({ height: frame.current?.clientHeight ?? 600, row });
    };
    measure();
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, []);
  useEffect(() => {
    if (frame.current) frame.current.scrollTop = 0;
    scrolled(0);
  }, [rows]);
  const first = Math.max(0, Math.floor(top / size.row) - BEYOND);
  const last = Math.min(count, Math.ceil((top + size.height) / size.row) + BEYOND);
  useEffect(() => seen?.(first, last), [first, last, rows]);
  const held = content.comparison === "overall" ? "Overall" : "Before";
  const sort = (name: SortName) =>
    change((next) => next.set("sort", filter.sort === name && !filter.descends ? `-${name}` : name));
  const heads: [string, SortName | null][] = [
    ["Slice", "level"],
    ["n", "n"],
    ["Value", "value"],
    [held, "reference"],
    ["Delta", "delta"],
    ["q", "q_value"],
  ];
  return (
    <div class="virtual" role="table" aria-rowcount={count + 1} aria-label={`Slices, ${metric.name}`}>
      <div role="rowgroup">
        <div role="row" class="row head" aria-rowindex={1}>
          {heads.map(([text, name]) => (
            <div key={text} role="columnheader" aria-sort={sorted(filter, name)}>
              {name && (
                <button type="button" onClick={() => sort(name)}>
                  {text} <span aria-hidden="true">{filter.sort === name ? (filter.descends ? "▾" : "▴") : ""}</span>
                </button>
              )}
            </div>
          ))}
        </div>
      </div>
      <div
        class="body"
        role="rowgroup"
        tabIndex={0}
        aria-label="Rows"
        ref={frame}
        onScroll={(event) => scrolled(event.currentTarget.scrollTop)}
      >
        <div role="presentation" style={{ height: `${first * size.row}px` }} />
        {Array.from({ length: Math.max(0, last - first) }, (_, at) => children(first + at))}
        <div role="presentation" style={{ height: `${(count - last) * size.row}px` }} />
      </div>
      {!count && <p class="none">No slice satisfies these filters. {none}</p>}
    </div>
  );
}

function sorted(filter: Filter, name: SortName | null): "ascending" | "descending" | "none" {
  if (filter.sort !== name) return "none";
  return filter.descends ? "descending" : "ascending";
}

/** A slice as a row shows it. */
export interface Shown {
  id: string;
  name: string;
  n: number;
  delta: number;
  low: number;
  high: number;
  finding: number;
  numbers: Numbers;
}

export function Row({ shown, index, largest, metric }: { shown: Shown; index: number; largest: number; metric: Metric }) {
  const { numbers, delta, low, high, finding } = shown;
  const x = (value: number) => 50 + 48 * Math.max(-1, Math.min(1, value / largest));
  return (
    <div role="row" class="row" aria-rowindex={index}>
      <div role="cell" class="what">
        <Link to={hashOf("slice", shown.id)}>
          <Short text={shown.name} />
        </Link>{" "}
        <span class="label">
          {[finding ? `finding ${finding}${isWorse(metric, delta) ? "" : ", better"}` : "", numbers.label].filter(Boolean).join(", ")}
        </span>
      </div>
      <div role="cell" class="number">
        <span class="only-narrow">n = </span>
        {format.count(shown.n)}
      </div>
      <div role="cell">
        {numbers.value} <small>{numbers.valueInterval}</small>
      </div>
      <div role="cell">
        <span class="only-narrow">against </span>
        {numbers.reference}
      </div>
      <div role="cell">
        {numbers.delta} <small>{numbers.deltaInterval}</small>
        {!Number.isNaN(delta) && (
          <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
            <line class="grid" x1={50} x2={50} y1={0} y2={10} />
            <rect
              class={isWorse(metric, delta) ? "bar worse" : "bar better"}
              x={Math.min(50, x(delta))}
              width={Math.abs(x(delta) - 50)}
              y={2}
              height={6}
            />
            {!Number.isNaN(low) && <path class="whisker" d={`M${x(low)},5H${x(high)}`} />}
          </svg>
        )}
      </div>
      <div role="cell">
        <span class="only-narrow">q </span>
        {numbers.q}
      </div>
    </div>
  );
}
