// How many of all slices have which size and which difference; a rectangle that is drawn in it filters.
import { useRef, useState } from "preact/hooks";

import * as format from "./format";
import type { Filter } from "./filter";
import type { Metric } from "./model";
import type { Density } from "./store";

const WIDTH = 300;
const HEIGHT = 320;
const LEFT = 40;
const BOTTOM = 40;

interface Given {
  density: Density | undefined;
  metric: Metric;
  filter: Filter;
  change: (update: (next: URLSearchParams) => void) => void;
}

export function DensityMap({ density: held, metric, filter, change }: Given) {
  const map = useRef<SVGSVGElement>(null);
  const [drawn, draw] = useState<{ x: number; y: number; x1: number; y1: number } | null>(null);
  if (!held) return null;
  const wide = WIDTH - LEFT - 10;
  const high = HEIGHT - BOTTOM - 10;
  const span = Math.log(held.most);
  const xOf = (n: number) => LEFT + (wide * Math.log(Math.max(1, n))) / span;
  const yOf = (delta: number) => 10 + high * (1 - (delta - held.low) / (held.high - held.low));
  const nAt = (x: number) => Math.exp((span * Math.min(1, Math.max(0, (x - LEFT) / wide))));
  const deltaAt = (y: number) => held.low + (held.high - held.low) * (1 - Math.min(1, Math.max(0, (y - 10) / high)));
  const most = Math.log(1 + Math.max(...held.cells.map((one) => one[2])));
  const at = (event: PointerEvent) => {
    const box = (map.current as SVGSVGElement).getBoundingClientRect();
    return { x: ((event.clientX - box.left) * WIDTH) / box.width, y: ((event.clientY - box.top) * HEIGHT) / box.height };
  };
  const end = () => {
    if (!drawn) return;
    draw(null);
    if (Math.abs(drawn.x - drawn.x1) < 4 || Math.abs(drawn.y - drawn.y1) < 4) return;
    change((next) => {
      next.set("least", nAt(Math.min(drawn.x, drawn.x1)).toFixed(0));
      next.set("most", Math.ceil(nAt(Math.max(drawn.x, drawn.x1))).toFixed(0));
      next.set("low", deltaAt(Math.max(drawn.y, drawn.y1)).toPrecision(3));
      next.set("high", deltaAt(Math.min(drawn.y, drawn.y1)).toPrecision(3));
    });
  };
  const box = drawn
    ? { left: Math.min(drawn.x, drawn.x1), right: Math.max(drawn.x, drawn.x1), top: Math.min(drawn.y, drawn.y1), bottom: Math.max(drawn.y, drawn.y1) }
    : {
        left: xOf(filter.least),
        right: xOf(Math.min(filter.most, held.most)),
        top: yOf(Math.min(filter.high, held.high)),
        bottom: yOf(Math.max(filter.low, held.low)),
      };
  const { least, most: atMost, low, high: atHigh } = filter;
  const isFiltered = drawn !== null || least > 0 || atMost < Infinity || low > -Infinity || atHigh < Infinity;
  const sizes = [1, 10, 100, 1000, 10_000, 100_000, 1e6, 1e7].filter((one) => one <= held.most);
  const deltas = [...new Set([held.low, 0, held.high])];
  return (
    <section class="density-map">
      <h2>{format.isShare(metric) ? "Difference, points," : "Difference"} by size</h2>
      <p class="note">Orange: most are significant; the stronger, the more slices. Draw a rectangle to filter.</p>
      <svg
        class="density"
        ref={map}
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        role="img"
        aria-label={`How many slices have which size, 1 to ${format.count(held.most)}, and which delta, ${format.difference(metric, held.low)} to ${format.difference(metric, held.high)}`}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          const { x, y } = at(event);
          draw({ x, y, x1: x, y1: y });
        }}
        onPointerMove={(event) => {
          const { x, y } = at(event);
          if (drawn) draw({ ...drawn, x1: x, y1: y });
        }}
        onPointerUp={end}
      >
        {held.cells.map(([across, up, slices, significant]) => (
          <rect
            key={`${across} ${up}`}
            class={2 * significant > slices ? "cell worse" : "cell"}
            x={LEFT + (wide * across) / held.across}
            y={10 + high * (1 - (up + 1) / held.up)}
            width={wide / held.across}
            height={high / held.up}
            fill-opacity={0.15 + (0.85 * Math.log(1 + slices)) / most}
          >
            <title>{`${format.plural(slices, "slice")}, ${format.count(significant)} significant`}</title>
          </rect>
        ))}
        {held.low < 0 && held.high > 0 && <line class="zero" x1={LEFT} x2={WIDTH - 10} y1={yOf(0)} y2={yOf(0)} />}
        {isFiltered && (
          <rect class="brush" x={box.left} y={box.top} width={Math.max(0, box.right - box.left)} height={Math.max(0, box.bottom - box.top)} />
        )}
        {sizes.map((one) => (
          <text key={one} x={xOf(one)} y={HEIGHT - 20} text-anchor="middle">
            {format.count(one)}
          </text>
        ))}
        <text x={LEFT + wide / 2} y={HEIGHT - 4} text-anchor="middle">
          examples
        </text>
        {deltas.map((one) => (
          <text key={one} x={LEFT - 6} y={yOf(one) + 5} text-anchor="end">
            {format.difference(metric, one).replace(" points", "")}
          </text>
        ))}
      </svg>
    </section>
  );
}
