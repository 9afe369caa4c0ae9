// Numbers as texts.
import type { Estimate, Metric } from "./model";

const MINUS = "\u2212";

function minus(text: string): string {
  return text.replace("-", MINUS);
}

/**
 * A number with so many digits after the point, rounded as Python does: what is halfway goes to the even
 * digit. Numbers of four bytes are first brought to the digits that they hold, so that a value reads the
 * same wherever it is from.
 */
function fixed(number: number, digits: number): string {
  const held = Number(number.toPrecision(7));
  const scaled = held * 10 ** digits;
  // Only of quarters, eighths and so on the half is exact.
  const isHalf = Math.abs(scaled % 1) === 0.5 && Number.isInteger(held * 2 ** (digits + 1));
  if (!isHalf) return held.toFixed(digits);
  const below = Math.floor(scaled);
  return ((below % 2 ? below + 1 : below) / 10 ** digits).toFixed(digits);
}

const LONGEST = 80;
const END = 34;

/** A text of conditions in which what is long is cut in the middle, so that its end is seen. */
export function cut(text: string): string {
  return text
    .split(" & ")
    .map((one) => (one.length <= LONGEST ? one : `${one.slice(0, LONGEST - END - 1)}…${one.slice(-END)}`))
    .join(" & ");
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
  return value > 0 && value < 0.001 ? "< 0.1%" : `${fixed(100 * value, value < 0.1 ? 1 : 0)}%`;
}

/** A value of a metric. */
export function value(metric: Metric, number: number): string {
  return minus(isShare(metric) ? `${fixed(100 * number, 1)}%` : number.toPrecision(3));
}

/** A difference of two values of a metric, with its sign; of shares in points. */
export function difference(metric: Metric, number: number): string {
  const text = isShare(metric)
    ? `${fixed(100 * number, 1)} points`
    : number.toPrecision(3);
  return minus(number > 0 ? `+${text}` : text);
}

/** How large a difference is, with two significant digits however small it is. */
export function size(metric: Metric, number: number): string {
  return isShare(metric) ? `${Number((100 * number).toPrecision(2))} points` : `${Number(number.toPrecision(2))}`;
}

/** The text of a tick of an axis, as short as the step from one tick to the next allows. */
export function tick(metric: Metric, at: number, step: number, isDifference: boolean): string {
  if (!isShare(metric)) return (isDifference ? difference : value)(metric, at);
  const digits = Math.max(0, -Math.floor(Math.log10(100 * step) + 1e-9));
  const text = fixed(100 * at, digits);
  if (!isDifference) return minus(`${text}%`);
  return minus(Number(text) > 0 ? `+${text}` : text);
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
