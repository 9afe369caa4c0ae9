// All slices of the page, and their filters.
import { useMemo } from "preact/hooks";

import { numbersOf } from "./columns";
import { csv, download } from "./csv";
import { DensityMap } from "./density";
import { filtered, filterOf } from "./filter";
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
  const largest = useMemo(() => largestDelta(columns), [columns]);
  const under = store.rowOf(filter.under);
  const change = (update: (next: URLSearchParams) => void) => {
    const next = new URLSearchParams(query);
    update(next);
    go(hashOf("slices", "", next), true);
  };
  return (
    <main class="wide">
      <h1 class="view" tabIndex={-1}>Slices</h1>
      <Filters
        content={content}
        conditions={store.conditions}
        metric={metric}
        filter={filter}
        change={change}
        under={under === undefined ? filter.under : store.nameOf(under)}
      />
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
      <SliceTable content={content} metric={metric} filter={filter} change={change} count={rows.length} rows={rows}>
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

function largestDelta(columns: Columns): number {
  let largest = 0;
  for (const one of columns.numbers.delta) if (Math.abs(one) > largest) largest = Math.abs(one);
  return largest || 1;
}
