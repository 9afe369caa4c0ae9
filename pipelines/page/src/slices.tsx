// All slices of the page, and their filters.
import { useMemo } from "preact/hooks";

import { numbersOf } from "./columns";
import { csv, download } from "./csv";
import { DensityMap } from "./density";
import { type Filter, filtered, filterOf } from "./filter";
import { Filters } from "./filters";
import * as format from "./format";
import type { Metric, Overview } from "./model";
import { go, hashOf } from "./route";
import { Row, SliceTable } from "./slice_table";
import type { Columns, NumberName, Store } from "./store";
import { metricOf, primary } from "./verdict";
import { Delta, Interval, Q, Refines } from "./words";

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
  const filter = useMemo(() => filterOf(new URLSearchParams(query), columns.significant.includes(1)), [query, columns]);
  const rows = useMemo(() => filtered(store, columns, metric, filter), [store, columns, filter]);
  const conditions = useMemo(() => store.conditions.map((one, code) => ({ ...one, key: store.keyOf(code) })), [store]);
  const counted = useMemo(() => countedWithout(store, columns, metric, filter, rows.length), [store, columns, filter, rows]);
  const largest = useMemo(() => largestDelta(columns), [columns]);
  const under = store.rowOf(filter.under);
  const change = (update: (next: URLSearchParams) => void) => {
    const next = new URLSearchParams(query);
    update(next);
    go(hashOf("slices", "", next), true);
  };
  const none = counted.all > 0 && (
    <>
      {format.plural(counted.all, "slice")} without “significant only” and with those that a slice above explains.{" "}
      <button
        type="button"
        onClick={() =>
          change((next) => {
            next.set("significant", "no");
            next.set("inherited", "yes");
          })
        }
      >
        Show {counted.all === 1 ? "it" : "them"}
      </button>
    </>
  );
  return (
    <main class="wide">
      <h1 class="view" tabIndex={-1}>Slices</h1>
      <Filters
        content={content}
        conditions={conditions}
        metric={metric}
        filter={filter}
        change={change}
        under={under === undefined ? filter.under : store.nameOf(under)}
      />
      <p class="found">
        <span role="status">
          {found(store, columns, filter, rows.length)}
          {rows.length > 0 && counted.folded > rows.length &&
            `; ${format.count(counted.folded - rows.length)} more are folded, as a more general slice explains them`}
        </span>{" "}
        <button type="button" disabled={!rows.length} onClick={() => download(csv(store, columns, metric.key, rows))}>
          Download as CSV
        </button>
      </p>
      <p class="legend">
        <Delta /> with its 95% <Interval />; <Q />; what a slice <Refines />.
      </p>
      <p class="only-print">Only visible rows are printed; the CSV file has all.</p>
      <SliceTable content={content} metric={metric} filter={filter} change={change} count={rows.length} rows={rows} none={none}>
        {(at) => {
          const row = rows[at] as number;
          const number = (name: NumberName) => columns.numbers[name][row] as number;
          const shown = {
            id: store.ids[row] as string,
            name: store.nameOf(row),
            n: store.n[row] as number,
            delta: number("delta"),
            low: number("ci_low"),
            high: number("ci_high"),
            finding: columns.finding[row] as number,
            numbers: numbersOf(columns, metric, row),
          };
          return <Row key={row} shown={shown} index={at + 2} largest={largest} metric={metric} />;
        }}
      </SliceTable>
      <DensityMap density={columns.density} metric={metric} filter={filter} change={change} />
    </main>
  );
}

/** How many rows there are, of how many that a reader may have in mind. */
function found(store: Store, columns: Columns, filter: Filter, rows: number): string {
  if (!filter.significant) {
    const more = store.all > store.rows ? `, which has the first of ${format.count(store.all)}` : "";
    return `${format.count(rows)} of ${format.plural(store.rows, "slice")} in this page${more}`;
  }
  const here = columns.significant.reduce((sum, one) => sum + one, 0);
  const all = Math.max(here, columns.allSignificant);
  const more = all > here ? `, of which ${format.count(here)} are in this page` : "";
  return `${format.count(rows)} of ${format.plural(all, "significant slice")}${more}`;
}

/** How many rows there would be with those that others explain, and with those that are not significant, too. */
function countedWithout(store: Store, columns: Columns, metric: Metric, filter: Filter, rows: number): { folded: number; all: number } {
  const count = (other: Filter) => filtered(store, columns, metric, other).length;
  const isBounded = filter.significant || !filter.inherited;
  return {
    folded: rows && !filter.inherited ? count({ ...filter, inherited: true }) : 0,
    all: !rows && isBounded ? count({ ...filter, significant: false, inherited: true }) : 0,
  };
}

function largestDelta(columns: Columns): number {
  let largest = 0;
  for (const one of columns.numbers.delta) if (Math.abs(one) > largest) largest = Math.abs(one);
  return largest || 1;
}
