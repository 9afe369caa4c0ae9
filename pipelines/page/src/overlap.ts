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
  if (one.op !== "between" || other.op !== "between") return false;
  const [low, high] = one.value as [unknown, unknown];
  const [low2, high2] = other.value as [unknown, unknown];
  if ([low, high, low2, high2].some((end) => typeof end !== "number")) return false;
  return (high as number) <= (low2 as number) || (high2 as number) <= (low as number);
}
