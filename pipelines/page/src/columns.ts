// The numbers of a row as texts, each with its interval or why there is none.
import * as format from "./format";
import type { Metric } from "./model";
import type { Columns, NumberName } from "./store";

export interface Numbers {
  value: string;
  valueInterval: string;
  delta: string;
  deltaInterval: string;
  reference: string;
  q: string;
  label: string;
}

function known(number: number | undefined): number | undefined {
  return number === undefined || Number.isNaN(number) ? undefined : number;
}

export function numbersOf(columns: Columns, metric: Metric, row: number): Numbers {
  return textsOf(
    metric,
    (name) => columns.numbers[name][row],
    columns.texts.reason[columns.codes.reason[row] as number] ?? null,
    columns.texts.label[columns.codes.label[row] as number] ?? null,
  );
}

/** The same of a row whose numbers are elsewhere; of q the decimal logarithm. */
export function textsOf(
  metric: Metric,
  number: (name: NumberName) => number | undefined,
  reason: string | null,
  label: string | null,
): Numbers {
  const at = (name: NumberName) => known(number(name));
  const value = at("value");
  const delta = at("delta");
  const reference = at("reference");
  return {
    value: value === undefined ? "undefined" : format.value(metric, value),
    valueInterval: value === undefined ? "" : format.interval(metric, at("value_low"), at("value_high")),
    delta: delta === undefined ? "undefined" : format.difference(metric, delta),
    deltaInterval: delta === undefined ? "" : format.differences(metric, at("ci_low"), at("ci_high")),
    reference: reference === undefined ? "undefined" : format.value(metric, reference),
    q: reason ? `not tested: ${reason}` : format.probability(number("q_value")),
    label: label ?? "",
  };
}

/** Whether a difference is for the worse, in a word and a sign, as colours alone say nothing. */
export function direction(metric: Metric, delta: number | undefined, isSignificant: boolean): string {
  if (delta === undefined || Number.isNaN(delta) || delta === 0) return "no difference";
  const word = delta > 0 !== metric.higher_is_better ? "worse" : "better";
  return isSignificant ? `${word}, significantly` : `${word}, not significantly`;
}
