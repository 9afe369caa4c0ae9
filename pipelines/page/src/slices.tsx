// All slices of the page: a table of which only the rows in sight are made, and its filters.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { numbersOf } from "./columns";
import { csv, download } from "./csv";
import { DensityMap } from "./density";
import { filtered, filterOf, type Filter, type SortName } from "./filter";
import { Filters } from "./filters";
import * as format from "./format";
import { Link } from "./link";
import type { Metric, Overview } from "./model";
import { go, hashOf } from "./route";
import { type Columns, isWorse, type Store } from "./store";
import { metricOf, primary } from "./verdict";
import { Delta, Interval, Q, Refines } from "./words";

// Rows are of one height, so that only those in sight need be made; style.css has the same.
const ROW = 64;
const NARROW_ROW = 156;
const BEYOND = 6;

export function Slices({ content, store, options }: { content: Overview; store: Store; options: URLSearchParams }) {
  const metric = metricOf(content, options.get("metric") ?? primary(content).key);
  const columns = store.metrics.get(metric.key);
  const query = options.toString();
  if (!columns) {
    return (
      <main>
        <h1 class="view" tabIndex={-1}>Slices</h1>
        <p>The page holds no slices of {metric.key}.</p>
      </main>
    );
  }
  return <Chosen key={metric.key} content={content} store={store} columns={columns} metric={metric} query={query} />;
}

interface ChosenGiven {
  content: Overview;
  store: Store;
  columns: Columns;
  metric: Metric;
  query: string;
}

function Chosen({ content, store, columns, metric, query }: ChosenGiven) {
  const filter = useMemo(() => filterOf(new URLSearchParams(query), columns), [query, columns]);
  const rows = useMemo(() => filtered(store, columns, metric, filter), [store, columns, filter]);
  const change = (update: (next: URLSearchParams) => void) => {
    const next = new URLSearchParams(query);
    update(next);
    go(hashOf("slices", "", next), true);
  };
  return (
    <main class="wide">
      <h1 class="view" tabIndex={-1}>Slices</h1>
      <Filters content={content} store={store} metric={metric} filter={filter} change={change} />
      <p class="found">
        <span role="status">
          {format.count(rows.length)} of {format.plural(store.rows, "slice")} in this page
          {store.all > store.rows && `, which has the first of ${format.count(store.all)}`}
        </span>{" "}
        <button type="button" disabled={!rows.length} onClick={() => download(csv(store, columns, metric.key, rows))}>
          Download as CSV
        </button>
      </p>
      <p class="legend">
        <Delta /> with its 95% <Interval />; <Q />; what a slice <Refines />.
      </p>
      <p class="only-print">The rows in sight are printed; the CSV file has all.</p>
      <Table store={store} columns={columns} metric={metric} rows={rows} filter={filter} change={change} content={content} />
      <DensityMap columns={columns} metric={metric} filter={filter} change={change} />
    </main>
  );
}

interface Given {
  content: Overview;
  store: Store;
  columns: Columns;
  metric: Metric;
  rows: Uint32Array;
  filter: Filter;
  change: (update: (next: URLSearchParams) => void) => void;
}

function Table({ content, store, columns, metric, rows, filter, change }: Given) {
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
  const last = Math.min(rows.length, Math.ceil((top + size.height) / size.row) + BEYOND);
  const largest = useMemo(() => largestDelta(columns), [columns]);
  const held = content.comparison === "baseline" ? "Before" : "Overall";
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
    <div class="virtual" role="table" aria-rowcount={rows.length + 1} aria-label={`Slices, ${metric.name}`}>
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
        {Array.from(rows.subarray(first, last), (row, at) => (
          <Row key={row} row={row} index={first + at + 2} largest={largest} given={{ store, columns, metric }} />
        ))}
        <div role="presentation" style={{ height: `${(rows.length - last) * size.row}px` }} />
      </div>
      {!rows.length && <p class="none">No slice satisfies these filters.</p>}
    </div>
  );
}

function sorted(filter: Filter, name: SortName | null): "ascending" | "descending" | "none" {
  if (filter.sort !== name) return "none";
  return filter.descends ? "descending" : "ascending";
}

function largestDelta(columns: Columns): number {
  let largest = 0;
  for (const one of columns.numbers.delta) if (Math.abs(one) > largest) largest = Math.abs(one);
  return largest || 1;
}

interface RowGiven {
  row: number;
  index: number;
  largest: number;
  given: { store: Store; columns: Columns; metric: Metric };
}

function Row({ row, index, largest, given }: RowGiven) {
  const { store, columns, metric } = given;
  const numbers = numbersOf(columns, metric, row);
  const delta = columns.numbers.delta[row] as number;
  const [low, high] = [columns.numbers.ci_low[row] as number, columns.numbers.ci_high[row] as number];
  const x = (value: number) => 50 + 48 * Math.max(-1, Math.min(1, value / largest));
  const finding = columns.finding[row];
  return (
    <div role="row" class="row" aria-rowindex={index}>
      <div role="cell" class="what">
        <Link to={hashOf("slice", store.ids[row])}>{store.nameOf(row)}</Link>{" "}
        <span class="label">
          {[finding ? `finding ${finding}` : "", numbers.label].filter(Boolean).join(", ")}
        </span>
      </div>
      <div role="cell" class="number">
        <span class="only-narrow">n = </span>
        {format.count(store.n[row] as number)}
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
