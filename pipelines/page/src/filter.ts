// Which rows are shown, and in which order.
import type { Metric } from "./model";
import { type Columns, isWorse, type NumberName, type Store } from "./store";

export type SortName = "harm" | "n" | "level" | NumberName;

export interface Filter {
  text: string;
  conditions: string[];
  direction: "any" | "worse" | "better";
  significant: boolean;
  inherited: boolean;
  /** What a slice says beside those above it; empty for any. */
  label: string;
  level: number;
  least: number;
  most: number;
  low: number;
  high: number;
  under: string;
  sort: SortName;
  descends: boolean;
}

const SORTS = ["harm", "n", "level", "value", "reference", "delta", "q_value"];

export const LABELS = ["new", "refines", "inherited"];

/** What the address asks for. Where no slice is significant, those that are not are shown unasked. */
export function filterOf(options: URLSearchParams, hasSignificant: boolean): Filter {
  const number = (name: string, other: number) => {
    const text = options.get(name);
    return text == null || text === "" || Number.isNaN(Number(text)) ? other : Number(text);
  };
  const direction = options.get("direction");
  const sort = options.get("sort") ?? "harm";
  const name = sort.replace(/^-/, "");
  return {
    text: options.get("text") ?? "",
    conditions: options.getAll("with"),
    direction: direction === "worse" || direction === "better" ? direction : "any",
    significant: options.has("significant")
      ? options.get("significant") === "yes"
      : hasSignificant,
    inherited: options.get("inherited") === "yes",
    label: LABELS.find((one) => one === options.get("label")) ?? "",
    level: number("level", 0),
    least: number("least", 0),
    most: number("most", Infinity),
    low: number("low", -Infinity),
    high: number("high", Infinity),
    under: options.get("under") ?? "",
    sort: (SORTS.includes(name) ? name : "harm") as SortName,
    descends: sort.startsWith("-"),
  };
}

export function filtered(store: Store, columns: Columns, metric: Metric, filter: Filter): Uint32Array {
  const { delta } = columns.numbers;
  const wanted = filter.conditions.map((key) => store.codeOf(key));
  const words = wordsOf(filter.text);
  // A condition's text is looked at once, however many slices have it.
  const said = words.map((word) => store.conditions.map((one) => one.text.toLowerCase().includes(word)));
  const named = words.length ? rowsCalled(store, words) : new Set<number>();
  const inherited = columns.texts.label.indexOf("inherited");
  const under = filter.under ? store.rowOf(filter.under) : undefined;
  const found = [];
  for (const row of ordered(store, columns, metric, filter)) {
    if (filter.significant && !columns.significant[row]) continue;
    // A finding is worth a look even where a slice above explains it.
    if (filter.label && columns.texts.label[columns.codes.label[row] as number] !== filter.label) continue;
    if (!filter.inherited && !filter.label && !columns.finding[row] && under === undefined && inherited > 0 && columns.codes.label[row] === inherited) continue;
    if (under !== undefined && columns.parent[row] !== under) continue;
    if (filter.level && store.lengths[row] !== filter.level) continue;
    const n = store.n[row] as number;
    if (n < filter.least || n > filter.most) continue;
    const change = delta[row] as number;
    if (filter.low !== -Infinity && !(change >= filter.low)) continue;
    if (filter.high !== Infinity && !(change <= filter.high)) continue;
    if (filter.direction !== "any" && (change === 0 || Number.isNaN(change) || isWorse(metric, change) !== (filter.direction === "worse"))) continue;
    if (wanted.length || (words.length && !named.has(row))) {
      const codes = store.codesOf(row);
      if (!wanted.every((code) => codes.includes(code))) continue;
      if (!named.has(row) && !said.every((has) => codes.some((code) => has[code]))) continue;
    }
    found.push(row);
  }
  return Uint32Array.from(found);
}

/** Rows whose id begins with the words, or that are called by all of them. */
function rowsCalled(store: Store, words: string[]): Set<number> {
  const found = new Set<number>();
  for (const [id, detail] of store.details) {
    const row = store.rowOf(id);
    if (row !== undefined && (words.every((word) => detail.words.includes(word)) || id.startsWith(words.join(" & ")))) found.add(row);
  }
  return found;
}

/** The words of a text filter. */
export function wordsOf(text: string): string[] {
  return text.toLowerCase().split("&").map((one) => one.trim()).filter(Boolean);
}

const orders = new WeakMap<Columns, Map<string, Uint32Array>>();

/** All rows in an order, which is kept: sorting is what takes long. */
function ordered(store: Store, columns: Columns, metric: Metric, filter: Filter): Uint32Array {
  const key = `${filter.sort} ${filter.descends}`;
  const known = orders.get(columns) ?? new Map<string, Uint32Array>();
  orders.set(columns, known);
  let order = known.get(key);
  if (!order) {
    const by = keys(store, columns, metric, filter.sort);
    const sign = filter.descends ? -1 : 1;
    order = Uint32Array.from({ length: store.rows }, (_, row) => row).sort((one, other) => {
      const a = by[one] as number;
      const b = by[other] as number;
      // What is not known comes last in either direction.
      if (a !== a || b !== b) return a === a ? -1 : b === b ? 1 : one - other;
      return sign * (a - b) || one - other;
    });
    known.set(key, order);
  }
  return order;
}

function keys(store: Store, columns: Columns, metric: Metric, sort: SortName): ArrayLike<number> {
  if (sort === "n") return store.n;
  if (sort === "level") return store.lengths;
  if (sort !== "harm") return columns.numbers[sort];
  // The findings come first, by their rank.
  const { finding } = columns;
  return Float64Array.from({ length: store.rows }, (_, row) =>
    finding[row] ? (finding[row] as number) - 1e9 : -surelyWorse(columns, metric, row),
  );
}

/** How much worse a slice surely is: the bound of its interval that is nearer to no difference. */
export function surelyWorse(columns: Columns, metric: Metric, row: number): number {
  const { ci_low, ci_high, delta } = columns.numbers;
  const change = delta[row] as number;
  const bound = change > 0 ? ci_low[row] : ci_high[row];
  return metric.higher_is_better ? -(bound as number) : (bound as number);
}
