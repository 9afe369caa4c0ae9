// A slice among its neighbours: those with one condition less above, with one more below.
import { useEffect, useRef } from "preact/hooks";

import { numbersOf } from "./columns";
import * as format from "./format";
import { Link } from "./link";
import type { Metric, Overview } from "./model";
import { hashOf } from "./route";
import { Missing } from "./missing";
import { Short } from "./short";
import { sharpest } from "./slice";
import { type Columns, isWorse, type Store } from "./store";
import { primary } from "./verdict";

const MOST_CHILDREN = 20;

export function Lattice({ content, store, id }: { content: Overview; store: Store; id: string }) {
  const tree = useRef<HTMLDivElement>(null);
  useEffect(() => tree.current?.querySelector<HTMLElement>(".focus a")?.focus({ preventScroll: true }), [id]);
  const row = store.rowOf(id);
  const metric = primary(content);
  const columns = store.metrics.get(metric.key);
  if (row === undefined || !columns) {
    return (
      <Missing title="Neighbours">
        {id ? `This page does not contain the slice ${id}.` : "The address names no slice."}
      </Missing>
    );
  }
  const parents = store.parents(row);
  const children = store.children(row);
  const shown = sharpest(columns, metric, children).slice(0, MOST_CHILDREN);
  const given = { store, columns, metric };
  const walk = (event: KeyboardEvent) => {
    const levels = [".parents", ".focus", ".children"].map((one) =>
      Array.from(tree.current?.querySelectorAll<HTMLElement>(`${one} a`) ?? []),
    );
    const from = levels.findIndex((one) => one.includes(document.activeElement as HTMLElement));
    if (from < 0) return;
    const at = levels[from]?.indexOf(document.activeElement as HTMLElement) ?? 0;
    const to = {
      ArrowUp: levels.slice(0, from).reverse().find((one) => one.length)?.[0],
      ArrowDown: levels.slice(from + 1).find((one) => one.length)?.[0],
      ArrowLeft: levels[from]?.[at - 1],
      ArrowRight: levels[from]?.[at + 1],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    to.focus();
  };
  return (
    <main class="wide">
      <h1 class="view" tabIndex={-1}>Neighbours</h1>
      <p class="legend">
        Above: one condition less. Below: one condition more, the worst first. What stands at a neighbour is
        how much its delta differs from that of the slice in the middle. That difference has no interval, as the two
        share examples; each delta has one. The arrow keys walk, Enter opens.
      </p>
      <div class="lattice" ref={tree} onKeyDown={walk}>
        {parents.length > 0 ? (
          <ul class="parents" aria-label="With one condition less">
            {parents.map((one) => (
              <li key={one.code}>
                {one.row === undefined ? (
                  <p class="node missing">without <Short text={store.conditions[one.code]?.text ?? ""} />: not in this page</p>
                ) : (
                  <Node given={given} row={one.row} from={row} text={`without ${store.conditions[one.code]?.text}`} />
                )}
              </li>
            ))}
          </ul>
        ) : (
          <p class="legend">Nothing is above but all examples.</p>
        )}
        <div class="focus">
          <Node given={given} row={row} from={null} text={store.nameOf(row)} />
        </div>
        {shown.length > 0 ? (
          <ul class="children" aria-label="With one condition more">
            {shown.map((one) => (
              <li key={one.code}>
                <Node given={given} row={one.row} from={row} text={`and ${store.conditions[one.code]?.text}`} />
              </li>
            ))}
          </ul>
        ) : (
          <p class="legend">The page holds no slice with one condition more.</p>
        )}
      </div>
      {children.length > shown.length && (
        <p class="legend">
          {format.plural(children.length - shown.length, "more slice")} with one condition more:{" "}
          <Link to={hashOf("slices", "", withMore(store, row))}>in the table of slices</Link>.
        </p>
      )}
    </main>
  );
}

/** The filter of the slices with one condition more. */
function withMore(store: Store, row: number): URLSearchParams {
  const options = new URLSearchParams({ significant: "no", inherited: "yes", level: String((store.lengths[row] as number) + 1) });
  for (const code of store.codesOf(row)) options.append("with", store.keyOf(code));
  return options;
}

interface NodeGiven {
  given: { store: Store; columns: Columns; metric: Metric };
  row: number;
  // The slice in the middle; null for itself.
  from: number | null;
  text: string;
}

function Node({ given: { store, columns, metric }, row, from, text }: NodeGiven) {
  const numbers = numbersOf(columns, metric, row);
  const delta = columns.numbers.delta[row] as number;
  const edge = from === null ? NaN : delta - (columns.numbers.delta[from] as number);
  // The colour says the same as the words: of a neighbour how it differs from the slice in the middle.
  const shown = from === null ? (columns.significant[row] ? delta : NaN) : edge;
  const kind = Number.isNaN(shown) || shown === 0 ? "" : isWorse(metric, shown) ? " worse" : " better";
  const open = from === null ? hashOf("slice", store.ids[row]) : hashOf("lattice", store.ids[row]);
  return (
    <div class={`node${kind}`}>
      <Link to={open}>
        <Short text={text} />
      </Link>
      {!Number.isNaN(edge) && (
        <b>
          {format.difference(metric, edge)}
          {edge !== 0 && `: ${isWorse(metric, edge) ? "worse" : "better"}`}
        </b>
      )}
      <small>
        n = {format.count(store.n[row] as number)}; delta {numbers.delta} ({numbers.deltaInterval});{" "}
        {columns.significant[row] ? "significant" : "not significant"}
      </small>
    </div>
  );
}
