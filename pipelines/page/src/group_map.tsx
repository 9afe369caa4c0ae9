// The groups of one resolution as circles, near to one another where their embeddings are.
import { scaleLinear } from "d3-scale";

import { direction, numbersOf } from "./columns";
import * as format from "./format";
import type { Metric } from "./model";
import { go, hashOf } from "./route";
import { type Columns, type GroupMap as Map, isWorse, type Store } from "./store";
import { Variance } from "./words";

const WIDTH = 600;
const HEIGHT = 380;
const EDGE = 40;
const LARGEST = 26;

interface Given {
  map: Map;
  store: Store;
  columns: Columns;
  metric: Metric;
}

export function GroupMap({ map, store, columns, metric }: Given) {
  const groups = map.places.flatMap(([x, y], at) => {
    const row = store.rowOfValue(map.field, String(at));
    return row === undefined ? [] : [{ x, y, row }];
  });
  if (groups.length < 2) return null;
  const ends = (values: number[]) => [Math.min(...values), Math.max(...values)];
  const x = scaleLinear().domain(ends(groups.map((one) => one.x))).range([EDGE, WIDTH - EDGE]);
  const y = scaleLinear().domain(ends(groups.map((one) => one.y))).range([HEIGHT - EDGE, EDGE]);
  const most = Math.max(...groups.map((one) => store.n[one.row] as number));
  // What is significant is drawn last, and small circles after large ones, so that none of these is hidden.
  const sure = (row: number) => columns.significant[row] as number;
  groups.sort(
    (one, other) =>
      sure(one.row) - sure(other.row) || (store.n[other.row] as number) - (store.n[one.row] as number),
  );
  return (
    <section>
      <h2>Map of {map.field}</h2>
      <p class="legend">
        A circle is a group, as large as it has examples. Those whose embeddings are alike lie together; the two axes
        hold {format.share(map.shown)} of the <Variance /> of the embeddings, so what is apart here is apart, and what is together may not be.
        − is significantly worse, + significantly better.
      </p>
      <svg class="map" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label={`Map of ${map.field}`}>
        {groups.map(({ row, x: across, y: up }) => {
          const delta = columns.numbers.delta[row] as number;
          const isSure = Boolean(columns.significant[row]);
          const kind = !isSure ? "none" : isWorse(metric, delta) ? "worse" : "better";
          const numbers = numbersOf(columns, metric, row);
          const to = hashOf("slice", store.ids[row]);
          const text = `${store.nameOf(row)}: delta ${numbers.delta} (${numbers.deltaInterval}), ${direction(metric, delta, isSure)}; ${format.plural(store.n[row] as number, "example")}`;
          return (
            <a
              key={row}
              href={to}
              aria-label={text}
              onClick={(event) => {
                event.preventDefault();
                go(to);
              }}
            >
              <title>{text}</title>
              <circle
                class={kind}
                cx={x(across)}
                cy={y(up)}
                r={Math.max(5, LARGEST * Math.sqrt((store.n[row] as number) / most))}
              />
              {isSure && (
                <text x={x(across)} y={y(up) + 5} text-anchor="middle">
                  {kind === "worse" ? "−" : "+"}
                </text>
              )}
            </a>
          );
        })}
      </svg>
    </section>
  );
}
