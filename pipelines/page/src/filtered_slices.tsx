// The view of all slices: its filters, how many they find, the table, and the map of size against delta.
import type { ComponentChildren } from "preact";

import { DensityMap } from "./density";
import { type FacetCounts, Facets } from "./facets";
import type { Filter } from "./filter";
import { type Choice, Filters } from "./filters";
import * as format from "./format";
import type { Axis } from "./marks";
import type { Metric, Overview } from "./model";
import { go, hashOf } from "./route";
import { SliceTable } from "./slice_table";
import type { Density, Store } from "./store";
import { Delta, Interval, Q, Refines } from "./words";

/** What the filters find. */
export interface Found {
  /** How many there are, of how many. */
  text: ComponentChildren;
  /** Rows that the table has. */
  count: number;
  /** Rows that a more general slice explains, which are folded. */
  folded: number;
  /** Where no row is left: rows without "significant only", with those that are explained. */
  beyond: number;
}

interface Given {
  content: Overview;
  store: Store;
  conditions: Choice[];
  metric: Metric;
  filter: Filter;
  /** What the address has. */
  query: string;
  /** Undefined until it is known. */
  found: Found | undefined;
  /** Said in place of the number. */
  problem?: string;
  /** Which rows are printed. */
  printed: string;
  save: () => void;
  density: Density | undefined;
  /** How many rows there are of each kind; undefined where that is not known. */
  facets?: FacetCounts;
  /** The axis of all rows. */
  axis: Axis;
  /** Another one for other rows: the table then begins at the top. */
  rows: unknown;
  /** Is called with the rows in sight. */
  seen?: (first: number, last: number) => void;
  children: (at: number) => ComponentChildren;
}

export function FilteredSlices({ content, store, conditions, metric, filter, query, found, ...given }: Given) {
  const change = (update: (next: URLSearchParams) => void) => {
    const next = new URLSearchParams(query);
    update(next);
    go(hashOf("slices", "", next), true);
  };
  const under = store.rowOf(filter.under);
  const widen = () =>
    change((next) => {
      next.set("significant", "no");
      next.set("inherited", "yes");
    });
  const none = found !== undefined && found.beyond > 0 && (
    <>
      {format.plural(found.beyond, "slice")} without “significant only” and with those that a slice above explains.{" "}
      <button type="button" onClick={widen}>
        Show {found.beyond === 1 ? "it" : "them"}
      </button>
    </>
  );
  return (
    <main>
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
          {given.problem || (found ? found.text : "The slices are being looked up.")}
          {!given.problem && found && found.folded > 0 &&
            `; ${format.count(found.folded)} more are folded, as a more general slice explains them`}
        </span>{" "}
        <button type="button" disabled={!found?.count} onClick={given.save}>
          Download as CSV
        </button>
      </p>
      <p class="legend">
        <Delta /> with its 95% <Interval />; <Q />; what a slice <Refines />.
        {metric.counted && ` n is of all examples of a slice; ${metric.name} is of its ${metric.counted}.`}
      </p>
      <p class="only-print">{given.printed}</p>
      <div class="slices">
        <div>
          <DensityMap density={given.density} metric={metric} filter={filter} change={change} />
          {given.facets && <Facets counts={given.facets} filter={filter} change={change} />}
        </div>
        {found && (
          <SliceTable
            content={content}
            metric={metric}
            filter={filter}
            change={change}
            count={found.count}
            axis={given.axis}
            rows={given.rows}
            none={none}
            {...(given.seen ? { seen: given.seen } : {})}
          >
            {given.children}
          </SliceTable>
        )}
      </div>
    </main>
  );
}
