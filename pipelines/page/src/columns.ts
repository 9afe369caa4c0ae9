// The numbers of a row as texts, each with its interval or why there is none.
import * as format from "./format";
import type { Metric } from "./model";
import type { Columns } from "./store";

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
  const at = (name: keyof Columns["numbers"]) => known(columns.numbers[name][row]);
  const value = at("value");
  const delta = at("delta");
  const reference = at("reference");
  const reason = columns.texts.reason[columns.codes.reason[row] as number];
  return {
    value: value === undefined ? "undefined" : format.value(metric, value),
    valueInterval: value === undefined ? "" : format.interval(metric, at("value_low"), at("value_high")),
    delta: delta === undefined ? "undefined" : format.difference(metric, delta),
    deltaInterval: delta === undefined ? "" : format.differences(metric, at("ci_low"), at("ci_high")),
    reference: reference === undefined ? "undefined" : format.value(metric, reference),
    q: reason ? `not tested: ${reason}` : format.probability(columns.numbers.q_value[row]),
    label: columns.texts.label[columns.codes.label[row] as number] ?? "",
  };
}

/** Whether a difference is for the worse, in a word and a sign, as colours alone say nothing. */
export function direction(metric: Metric, delta: number | undefined, isSignificant: boolean): string {
  if (delta === undefined || Number.isNaN(delta) || delta === 0) return "no difference";
  const word = delta > 0 !== metric.higher_is_better ? "worse" : "better";
  return isSignificant ? `${word}, significantly` : `${word}, not significantly`;
}
