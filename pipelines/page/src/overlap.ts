// How two slices lie to one another, as far as their conditions and the rows of the page say it.
import type { Condition, Store } from "./store";

export type Relation =
  | { kind: "same" | "contains" | "within" | "disjoint" | "unknown" }
  | { kind: "shared"; n: number; row: number };

export function relation(store: Store, row: number, other: number): Relation {
  const own = new Set(store.codesOf(row));
  const theirs = new Set(store.codesOf(other));
  if (!own.size || !theirs.size) return { kind: row === other ? "same" : "unknown" };
  const has = (all: Set<number>, some: Set<number>) => [...some].every((code) => all.has(code));
  if (has(own, theirs)) return { kind: has(theirs, own) ? "same" : "within" };
  if (has(theirs, own)) return { kind: "contains" };
  for (const one of own) {
    for (const two of theirs) {
      if (exclude(store.conditions[one] as Condition, store.conditions[two] as Condition)) return { kind: "disjoint" };
    }
  }
  // What is in both satisfies the conditions of both, which may be a slice of its own.
  const both = store.rowOfCodes(new Set([...own, ...theirs]));
  return both === undefined ? { kind: "unknown" } : { kind: "shared", n: store.n[both] as number, row: both };
}

/** Whether no value satisfies both conditions. */
function exclude(one: Condition, other: Condition): boolean {
  if (one.field !== other.field) return false;
  if (one.op === "==" && other.op === "==") return one.value !== other.value;
  const [first, second] = [rangeOf(one), rangeOf(other)];
  if (!first || !second) return false;
  const isBelow = (a: Range, b: Range) => a.high < b.low || (a.high === b.low && !a.isClosed);
  return isBelow(first, second) || isBelow(second, first);
}

interface Range {
  low: number;
  high: number;
  /** Whether the upper end is in it. */
  isClosed: boolean;
}

/** The numbers of a condition; the end of a range is not in it. */
function rangeOf({ op, value }: Condition): Range | null {
  const [low, high] =
    op === "between" ? (value as unknown[]) : op === "==" ? [value, value] : op === "<" ? [-Infinity, value] : op === ">=" ? [value, Infinity] : [];
  if (typeof low !== "number" || typeof high !== "number") return null;
  return { low, high, isClosed: op === "==" };
}
