// All slices of the page, and their filters.
import { useMemo } from "preact/hooks";

import { numbersOf } from "./columns";
import { csv, download } from "./csv";
import { facetCounts } from "./facets";
import { type Filter, filtered, filterOf } from "./filter";
import { FilteredSlices } from "./filtered_slices";
import * as format from "./format";
import { axisOf } from "./marks";
import type { Metric, Overview } from "./model";
import { Row } from "./slice_table";
import type { Columns, NumberName, Store } from "./store";
import { metricOf, primary } from "./verdict";

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
  const facets = useMemo(() => facetCounts(store, rows), [store, rows]);
  const axis = useMemo(() => axisOf(metric, deltaEnds(columns), true, [0]), [columns, metric]);
  return (
    <FilteredSlices
      content={content}
      store={store}
      conditions={conditions}
      metric={metric}
      filter={filter}
      query={query}
      found={{ text: found(store, columns, filter, rows.length), count: rows.length, ...counted }}
      printed="Only visible rows are printed; the CSV file has all."
      save={() => download(csv(store, columns, metric.key, rows))}
      density={columns.density}
      facets={facets}
      axis={axis}
      rows={rows}
    >
      {(at) => {
        const row = rows[at] as number;
        const number = (name: NumberName) => columns.numbers[name][row] as number;
        const shown = {
          id: store.ids[row] as string,
          name: store.nameOf(row),
          chips: store.chipsOf(row),
          n: store.n[row] as number,
          delta: number("delta"),
          low: number("ci_low"),
          high: number("ci_high"),
          finding: columns.finding[row] as number,
          isSignificant: Boolean(columns.significant[row]),
          numbers: numbersOf(columns, metric, row),
        };
        return <Row key={row} shown={shown} index={at + 2} axis={axis} metric={metric} />;
      }}
    </FilteredSlices>
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

/** How many rows more there would be with those that others explain; of no row, how many with all. */
function countedWithout(store: Store, columns: Columns, metric: Metric, filter: Filter, rows: number): { folded: number; beyond: number } {
  const count = (other: Filter) => filtered(store, columns, metric, other).length;
  const isBounded = filter.significant || !filter.inherited;
  return {
    folded: rows && !filter.inherited ? count({ ...filter, inherited: true }) - rows : 0,
    beyond: !rows && isBounded ? count({ ...filter, significant: false, inherited: true }) : 0,
  };
}

/** The lowest and the highest difference. */
function deltaEnds(columns: Columns): { value: number }[] {
  let [low, high] = [0, 0];
  for (const delta of columns.numbers.delta) {
    if (delta < low) low = delta;
    if (delta > high) high = delta;
  }
  return [{ value: low }, { value: high }];
}
