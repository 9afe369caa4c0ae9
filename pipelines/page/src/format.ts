// Numbers as texts.
import type { Estimate, Metric } from "./model";

const MINUS = "\u2212";

function minus(text: string): string {
  return text.replace("-", MINUS);
}

/** Whether a metric is a share, which is shown in percent. */
export function isShare(metric: Metric): boolean {
  return metric.range[0] === 0 && metric.range[1] === 1 && metric.key !== "brier";
}

export function count(value: number): string {
  return value.toLocaleString("en-GB");
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function share(value: number): string {
  return value > 0 && value < 0.001 ? "< 0.1%" : `${(100 * value).toFixed(value < 0.1 ? 1 : 0)}%`;
}

/** A value of a metric. */
export function value(metric: Metric, number: number): string {
  return minus(isShare(metric) ? `${(100 * number).toFixed(1)}%` : number.toPrecision(3));
}

/** A difference of two values of a metric, with its sign; of shares in points. */
export function difference(metric: Metric, number: number): string {
  const text = isShare(metric)
    ? `${(100 * number).toFixed(1)} points`
    : number.toPrecision(3);
  return minus(number > 0 ? `+${text}` : text);
}

/** An interval of values, or why there is none. */
export function interval(metric: Metric, lo?: number | null, hi?: number | null): string {
  if (lo == null || hi == null) return "no interval is known";
  return `${value(metric, lo)} to ${value(metric, hi)}`;
}

/** An interval of differences, or why there is none. */
export function differences(metric: Metric, lo?: number | null, hi?: number | null): string {
  if (lo == null || hi == null) return "no interval is known";
  return `${difference(metric, lo).replace(" points", "")} to ${difference(metric, hi)}`;
}

export function estimate(metric: Metric, given: Estimate): string {
  if (given.value == null) return "undefined";
  return `${value(metric, given.value)} (${interval(metric, given.lo, given.hi)})`;
}

export function date(iso: string): string {
  return `${iso.slice(0, 10)} ${iso.slice(11, 16)} UTC`;
}

/** A p or q of which the decimal logarithm is given. */
export function probability(log: number | undefined): string {
  if (log === undefined || Number.isNaN(log)) return "not tested";
  if (log < -300) return "< 1e\u2212300";
  const number = 10 ** log;
  if (number >= 0.001) return number.toPrecision(2);
  const exponent = Math.floor(log + 1e-9);
  return minus(`${(10 ** (log - exponent)).toFixed(1)}e${exponent}`);
}

export function log(number: number | undefined): number {
  return number === undefined ? NaN : Math.log10(number);
}
