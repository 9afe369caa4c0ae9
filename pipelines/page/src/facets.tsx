// What the slices are by number of conditions, size and feature; each line filters.
import * as format from "./format";
import type { Filter } from "./filter";
import type { Store } from "./store";

/** How many rows there are of each kind. */
export interface FacetCounts {
  levels: number[];
  sizes: number[];
  fields: [string, number][];
}

const SIZES: { text: string; least: number; most: number }[] = [
  { text: "under 100", least: 0, most: 99 },
  { text: "100 to 999", least: 100, most: 999 },
  { text: "1,000 or more", least: 1_000, most: Infinity },
];
const MOST_FIELDS = 10;

export function facetCounts(store: Store, rows: Uint32Array): FacetCounts {
  const levels: number[] = [];
  const sizes = SIZES.map(() => 0);
  const fields = new Map<string, number>();
  for (const row of rows) {
    const level = store.lengths[row] as number;
    levels[level] = (levels[level] ?? 0) + 1;
    const n = store.n[row] as number;
    const size = SIZES.findIndex(({ most }) => n <= most);
    sizes[size] = (sizes[size] as number) + 1;
    for (const code of store.codesOf(row)) {
      const field = store.conditions[code]?.field ?? "";
      fields.set(field, (fields.get(field) ?? 0) + 1);
    }
  }
  return { levels, sizes, fields: [...fields].sort((a, b) => b[1] - a[1]).slice(0, MOST_FIELDS) };
}

interface Given {
  counts: FacetCounts;
  filter: Filter;
  change: (update: (next: URLSearchParams) => void) => void;
}

export function Facets({ counts: { levels, sizes, fields }, filter, change }: Given) {
  const set = (name: string, value: string, isChosen: boolean) =>
    change((next) => (isChosen ? next.delete(name) : next.set(name, value)));
  const all = Math.max(1, ...levels.filter(Boolean), ...sizes, ...fields.map(([, count]) => count));
  return (
    <div class="facets">
      <h2>Conditions</h2>
      {levels.map(
        (count, level) =>
          level > 0 && (
            <Facet key={level} text={format.plural(level, "condition")} {...{ count, all }} isChosen={filter.level === level} toggle={(is) => set("level", String(level), is)} />
          ),
      )}
      <h2>Examples</h2>
      {SIZES.map(({ text, least, most }, at) => (
        <Facet
          key={text}
          text={text}
          count={sizes[at] ?? 0}
          all={all}
          isChosen={filter.least === least && filter.most === most && sizes.filter(Boolean).length === 1}
          toggle={(isChosen) =>
            change((next) => {
              next.delete("least");
              next.delete("most");
              if (!isChosen && least > 0) next.set("least", String(least));
              if (!isChosen && most < Infinity) next.set("most", String(most));
            })
          }
        />
      ))}
      <h2>Feature</h2>
      {fields.map(([field, count]) => (
        <Facet key={field} text={field} {...{ count, all }} isChosen={filter.text === field} toggle={(is) => set("text", field, is)} />
      ))}
    </div>
  );
}

function Facet(given: { text: string; count: number; all: number; isChosen: boolean; toggle: (isChosen: boolean) => void }) {
  const { text, count, all, isChosen, toggle } = given;
  return (
    <button type="button" class="facet" aria-pressed={isChosen} onClick={() => toggle(isChosen)}>
      <span>{text}</span>
      <svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
        <rect class="track" width="100" height="6" />
        <rect class="part" width={(100 * count) / all} height="6" />
      </svg>
      <span>{format.count(count)}</span>
    </button>
  );
}
