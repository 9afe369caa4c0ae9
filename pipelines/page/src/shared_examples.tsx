// Which findings have examples of a slice.
import * as format from "./format";
import { Link } from "./link";
import type { Finding, Overview } from "./model";
import { relation } from "./overlap";
import { hashOf } from "./route";
import { Short } from "./short";
import type { Store } from "./store";
import { metricOf } from "./verdict";

export function Findings({ content, store, row }: { content: Overview; store: Store; row: number }) {
  const id = store.ids[row];
  const others = content.findings.filter((one) => one.slice_id !== id).slice(0, 10);
  if (!others.length) return null;
  const own = content.findings.filter((one) => one.slice_id === id);
  const known = others.map((one) => {
    const other = store.rowOf(one.slice_id);
    const words = other === undefined ? "" : shared(store, row, other);
    return { one, other, words: words || inCommon(content, own, one) };
  });
  const said = known.filter((each) => each.words);
  return (
    <details>
      <summary>Shared examples with other groups</summary>
      <ul>
        {said.map(({ one, other, words }) => (
          <li key={`${one.metric} ${one.direction} ${one.rank}`}>
            {content.metrics.length > 1 && `${metricOf(content, one.metric).name}, `}
            {one.direction}, {one.rank}: <Link to={hashOf("slice", one.slice_id)}>
              <Short text={other === undefined ? one.slice_id : store.nameOf(other)} />
            </Link>:{" "}
            {words}
          </li>
        ))}
      </ul>
      {said.length < others.length && (
        <p class="legend">
          {format.plural(others.length - said.length, "finding")} may have examples in common with it: this page has
          no slice of both.
        </p>
      )}
    </details>
  );
}

/** The same by the sets of examples that a document has of its first findings. */
function inCommon(content: Overview, own: Finding[], other: Finding): string {
  for (const one of own) {
    if (one.metric !== other.metric || one.direction !== other.direction) continue;
    const model = content.finding_models.find((each) => each.metric === one.metric && each.direction === one.direction);
    const sets = model?.intersections ?? [];
    const share = (ranks: number[]) =>
      sets.reduce((sum, set) => (ranks.every((rank) => set.findings.includes(rank)) ? sum + set.share : sum), 0);
    const all = sets.reduce((sum, set) => sum + set.share, 0);
    const both = share([one.rank, other.rank]);
    // Of findings after the first ten the sets say nothing.
    if (!share([one.rank]) || !share([other.rank])) continue;
    if (both) return `${all < 0.9995 ? "at least " : ""}${format.share(both)} of all examples are in both`;
    return all < 0.9995 ? `at most ${format.share(1 - all)} of all examples are in both` : "no example in common";
  }
  return "";
}

/** How many examples are in both, in words; nothing where the page can't say. */
function shared(store: Store, row: number, other: number): string {
  const found = relation(store, row, other);
  switch (found.kind) {
    case "same":
      return "the same slice";
    case "within":
      return "all examples of this slice are in it";
    case "contains":
      return "all its examples are in this slice";
    case "disjoint":
      return "no example in common";
    case "shared":
      return `${format.plural(found.n, "example")} in common, ${format.share(found.n / (store.n[row] as number))} of this slice`;
    case "unknown":
      return "";
  }
}
