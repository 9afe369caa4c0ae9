// A table of slices of which only the rows in sight are made.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { type Chip, Chips } from "./chips";
import type { Numbers } from "./columns";
import type { Filter, SortName } from "./filter";
import * as format from "./format";
import { Link } from "./link";
import { type Axis, AxisHead, Mark } from "./marks";
import type { Metric, Overview } from "./model";
import { hashOf } from "./route";
import { isWorse } from "./store";

// Rows are of one height, so that only those in sight need be made; style.css has the same.
const ROW = 56;
const NARROW_ROW = 168;
const BEYOND = 6;

interface Given {
  content: Overview;
  metric: Metric;
  filter: Filter;
  change: (update: (next: URLSearchParams) => void) => void;
  /** How many rows there are. */
  count: number;
  axis: Axis;
  /** Another one for other rows: the table then begins at the top. */
  rows: unknown;
  children: (at: number) => ComponentChildren;
  /** What is said besides where no row is left. */
  none?: ComponentChildren;
  /** Is called with the rows in sight. */
  seen?: (first: number, last: number) => void;
}

export function SliceTable({ content, metric, filter, change, count, axis, rows, children, seen, none }: Given) {
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
  const unit = format.isShare(metric) ? ", points" : "";
  const heads: { text: string; name?: SortName; kind?: string; axis?: boolean }[] = [
    { text: "Slice", name: "level" },
    { text: "Label", kind: "label" },
    { text: metric.name, name: "value", kind: "number" },
    { text: held, name: "reference", kind: "number" },
    { text: `Interval of delta${unit}`, name: "harm", kind: "plot", axis: true },
    { text: "Delta", name: "delta", kind: "number" },
    { text: "n", name: "n", kind: "number" },
    { text: "q", name: "q_value", kind: "number" },
  ];
  return (
    <div class="virtual" role="table" aria-rowcount={count + 1} aria-label={`Slices, ${metric.name}`}>
      <div role="rowgroup">
        <div role="row" class="row head" aria-rowindex={1}>
          {heads.map(({ text, name, kind = "", axis: hasAxis }) => (
            <div key={text} role="columnheader" class={kind} aria-sort={sorted(filter, name)}>
              {name ? (
                <button type="button" onClick={() => sort(name)}>
                  {text} <span aria-hidden="true">{filter.sort === name ? (filter.descends ? "▾" : "▴") : ""}</span>
                </button>
              ) : (
                text
              )}
              {hasAxis && <AxisHead axis={axis} title="" />}
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

function sorted(filter: Filter, name: SortName | undefined): "ascending" | "descending" | "none" {
  if (filter.sort !== name) return "none";
  return filter.descends ? "descending" : "ascending";
}

/** A slice as a row shows it. */
export interface Shown {
  id: string;
  name: string;
  chips: Chip[];
  n: number;
  delta: number;
  low: number;
  high: number;
  finding: number;
  isSignificant: boolean;
  numbers: Numbers;
}

export function Row({ shown, index, axis, metric }: { shown: Shown; index: number; axis: Axis; metric: Metric }) {
  const { numbers, delta, low, high, finding } = shown;
  const isKnown = !Number.isNaN(delta);
  const tone = !isKnown || !shown.isSignificant ? "none" : isWorse(metric, delta) ? "worse" : "better";
  const bare = (text: string) => (text === "undefined" ? "–" : text.replace("%", "").replace(" points", ""));
  const cell = (name: string, text: string) => (
    <div role="cell" class="number">
      <span class="only-narrow">{name} </span>
      {text}
    </div>
  );
  return (
    <div role="row" class="row" aria-rowindex={index}>
      <div role="cell" class="what">
        <Link to={hashOf("slice", shown.id)}>
          <Chips conditions={shown.chips} name={shown.name} />
        </Link>
      </div>
      <div role="cell" class="label">
        {finding ? `finding ${finding}${isWorse(metric, delta) ? "" : ", better"}` : numbers.label}
      </div>
      {cell(metric.name, bare(numbers.value))}
      {cell("against", bare(numbers.reference))}
      <div role="cell" class="plot">
        <Mark axis={axis} shown={isKnown ? { value: delta, lo: low, hi: high } : null} tone={tone} from={0} label={`${numbers.delta} (${numbers.deltaInterval})`} />
      </div>
      {cell("delta", bare(numbers.delta))}
      {cell("n", format.count(shown.n))}
      {cell("q", numbers.q)}
    </div>
  );
}
