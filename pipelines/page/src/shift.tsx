// How the answers of a prediction API shifted: the confusion matrices, and what their estimate cost.
import { useState } from "preact/hooks";

import * as format from "./format";
import type { Focus, Overview, Shift } from "./model";
import type { Store } from "./store";
import { Missing } from "./missing";
import { Strata } from "./strata";
import { overall, primary, WORDS } from "./verdict";
import { ConfusionMatrix, FrobeniusError, Interval, Q } from "./words";

const STOPPED = {
  budget: "The budget was spent.",
  target_error: "The target error was reached.",
  pool: "Every item was queried.",
};

const NO_INTERVAL = "no interval: see the difference";

export function ShiftView({ content, store }: { content: Overview; store: Store }) {
  const shift = store.shift;
  const [chosen, choose] = useState("");
  if (!shift) return <Missing title="Shift">This page has no shift: slicebeam shift estimates one.</Missing>;
  const part = shift.slices.find((one) => one.slice_id === chosen);
  const { cost } = shift;
  const shown = part ?? shift;
  const changed = part ? [] : shift.changed;
  return (
    <main class="wide">
      <h1 class="view" tabIndex={-1}>Shift</h1>
      <p class="verdict">{overall(content, primary(content))}</p>
      {shift.focus && <p>{focused(shift.focus)}</p>}
      <p>
        {format.plural(shift.changed.length, "cell")} of the <ConfusionMatrix /> changed significantly.{" "}
        {shift.corrected_for}
      </p>
      {shift.slices.length > 0 && (
        <p>
          <label>
            Examples{" "}
            <select value={chosen} onChange={(event) => choose(event.currentTarget.value)}>
              <option value="">all</option>
              {shift.slices.map((one) => {
                const row = store.rowOf(one.slice_id);
                return (
                  <option key={one.slice_id} value={one.slice_id}>
                    {row === undefined ? one.slice_id : store.nameOf(row)}
                  </option>
                );
              })}
            </select>
          </label>{" "}
          {part && `${format.plural(part.calls, "call")}; the cells of a slice are not tested, they have intervals.`}
        </p>
      )}
      {changed.length > 0 && (
        <section>
          <h2>What changed</h2>
          <p class="legend">In points: hundredths of all items, with the {format.share(shift.confidence)} interval; <Q />.</p>
          <ul>
            {changed.map((one, at) => (
              <li key={at}>
                label {text(one.label)}, answer {text(one.prediction)}: {points(one.shift.value)} (
                {points(one.shift.lo)} to {points(one.shift.hi)}), q {format.probability(format.log(one.p_adjusted))}
              </li>
            ))}
          </ul>
        </section>
      )}
      <p class="legend">
        Rows are labels, columns are answers; each cell is a share of all items. Changed cells have a frame and a
        sign. The {format.share(shift.confidence)} <Interval /> stands below.
      </p>
      <div class="matrices">
        <Matrix title="New minus old" shift={shift} cell={(i, j) => points(shown.shift[i]?.[j])} below={(i, j) => `${points(shown.shift_lo[i]?.[j])} to ${points(shown.shift_hi[i]?.[j])}`} changed={changed} />
        {shown.old_matrix && (
          <Matrix title="Old" shift={shift} cell={(i, j) => percent(shown.old_matrix?.[i]?.[j])} below={() => (shift.old_from === "predictions" ? "counted" : "estimated earlier")} changed={[]} />
        )}
        <Matrix title="New" shift={shift} cell={(i, j) => percent(shown.new_matrix[i]?.[j])} below={(i, j) => (shift.old_from === "predictions" ? newInterval(shown, i, j) : NO_INTERVAL)} changed={[]} />
      </div>
      <section>
        <h2>What it cost</h2>
        <dl>
          <dt>Calls</dt>
          <dd>
            {format.count(cost.calls)}
            {cost.replayed > 0 && `, of which ${format.count(cost.replayed)} were in the ledger already`}
            {cost.no_result > 0 && `; ${format.count(cost.no_result)} answers are no class`}
            {cost.unaccounted > 0 && `; ${format.plural(cost.unaccounted, "further call")} got no answer and may have been charged`}
          </dd>
          <dt>Spent</dt>
          <dd>{cost.spent == null ? "no price was given" : `${cost.spent.toFixed(2)} ${cost.currency ?? ""}`}</dd>
          <dt>Stopped</dt>
          <dd>{STOPPED[shift.stopped]}</dd>
          <dt>Error</dt>
          <dd>
            With a confidence of {format.share(shift.confidence)},{" "}
            {!shift.focus &&
              `each cell of the new matrix is within ${(100 * shift.frobenius_bound).toPrecision(2)} points of what a call for every item would give: `}
            the <FrobeniusError /> is below {shift.frobenius_bound.toPrecision(2)}
            {shift.focus && `, each cell times its weight of --focus ${shift.focus.of}`}.
          </dd>
        </dl>
      </section>
      <Strata shift={shift} />
    </main>
  );
}

/** How the cells changed that count. */
function focused({ of, before, after, shift, p_value, significant, direction }: Focus): string {
  const change = `${number(shift.value)} (${number(shift.lo)} to ${number(shift.hi)})`;
  const judged = significant ? `significantly ${WORDS[direction] ?? "different"}` : "not significant";
  return `--focus ${of}: from ${number(before)} to ${number(after.value)}: ${change}, p ${format.probability(format.log(p_value))}, ${judged}.`;
}

/** Old plus the interval of the shift, as the old matrix is counted. */
function newInterval(shown: Pick<Shift, "shift_lo" | "shift_hi"> & { old_matrix: Shift["old_matrix"] | null }, i: number, j: number): string {
  const old = shown.old_matrix?.[i]?.[j];
  const [low, high] = [shown.shift_lo[i]?.[j], shown.shift_hi[i]?.[j]];
  if (old == null || low == null || high == null) return NO_INTERVAL;
  return `${percent(Math.max(0, old + low))} to ${percent(Math.min(1, old + high))}`;
}

interface Given {
  title: string;
  shift: Shift;
  cell: (i: number, j: number) => string;
  below: (i: number, j: number) => string;
  changed: Shift["changed"];
}

function Matrix({ title, shift, cell, below, changed }: Given) {
  const isChanged = (i: number, j: number) =>
    changed.some((one) => same(one.label, shift.labels[i]) && same(one.prediction, shift.predictions[j]));
  return (
    <div class="scrolled" tabIndex={0} role="region" aria-label={title}>
      <table class="matrix">
        <caption>{title}</caption>
        <thead>
          <tr>
            <td>label, answer</td>
            {shift.predictions.map((one, j) => (
              <th key={j} scope="col">
                {text(one)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shift.labels.map((label, i) => (
            <tr key={i}>
              <th scope="row">{text(label)}</th>
              {shift.predictions.map((_, j) => (
                <td key={j} class={isChanged(i, j) ? "changed" : ""}>
                  {cell(i, j)} {isChanged(i, j) && <span class="sign">changed</span>}
                  <small>{below(i, j)}</small>
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function same(one: unknown, other: unknown): boolean {
  return (one ?? null) === (other ?? null);
}

function text(value: unknown): string {
  return value == null ? "no class" : String(value);
}

function number(value: number | null | undefined): string {
  return value == null ? "not known" : value.toPrecision(3).replace("-", "\u2212");
}

function percent(number: number | null | undefined): string {
  return number == null ? "not known" : `${(100 * number).toFixed(1)}%`;
}

function points(number: number | null | undefined): string {
  if (number == null) return "not known";
  const shown = (100 * number).toFixed(1);
  return `${number > 0 ? "+" : ""}${shown}`.replace("-", "\u2212");
}
