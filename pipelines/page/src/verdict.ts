// The result in sentences: what a reader has to know first, on the page and in a mail.
import * as format from "./format";
import type { State } from "./marks";
import type { Change, Finding, Metric, MetricTests, Moved, Overview, Since, Slice } from "./model";
import type { Store } from "./store";

export function metricOf(overview: Overview, key: string): Metric {
  return (
    overview.metrics.find((one) => one.key === key) ?? {
      key,
      name: key,
      range: [null, null],
      higher_is_better: true,
      primary: false,
    }
  );
}

export function testsOf(overview: Overview, metric: Metric): MetricTests | undefined {
  return overview.tests.find((one) => one.metric === metric.key);
}

export function sliceOf(overview: Overview, id: string): Slice | undefined {
  return overview.slices.find((one) => one.slice_id === id);
}

export function primary(overview: Overview): Metric {
  return overview.metrics.find((one) => one.primary) ?? metricOf(overview, "");
}

/** The metric over all examples, with its interval. */
export function overall(overview: Overview, metric: Metric): string {
  const change = overview.global.find((one) => one.metric === metric.key);
  if (!change) return `${metric.name} over all examples is not known.`;
  const now = format.estimate(metric, change.after);
  const n = format.plural(change.n, "example");
  if (!change.before) return `${metric.name} is ${now} over ${n}.`;
  const delta = change.delta;
  const changed =
    delta?.value == null
      ? "the change is undefined"
      : `${format.difference(metric, delta.value)} (${format.differences(metric, delta.lo, delta.hi)})`;
  // What a shift starts from was counted on all examples.
  const isCounted = overview.command === "shift" && change.before.value != null && change.before.lo == null;
  const before = isCounted
    ? `${format.value(metric, change.before.value as number)} (counted, so without an interval)`
    : format.estimate(metric, change.before);
  const moved = movement(metric, change);
  return `${metric.name} went from ${before} to ${now}: ${changed}, over ${n}.${moved && ` ${moved}.`}`;
}

/** How single examples changed between two models; nothing where it is not known. */
export function movement(metric: Metric, change: Change | undefined): string {
  if (change?.inconsistency == null) return "";
  const spread = `inconsistency ${change.inconsistency.toPrecision(3)}`;
  const { improved, degraded } = change;
  if (!improved || !degraded) return `The change of an example has a standard deviation: ${spread}`;
  const part = ({ n, share }: Moved) =>
    `${format.count(n)} (${format.share(share.value ?? 0)}${share.lo == null ? "" : `, ${format.interval(metric, share.lo, share.hi)}`})`;
  return `${part(improved)} improved, ${part(degraded)} degraded, ${spread}`;
}

export const WORDS: Record<string, string> = { degraded: "worse", improved: "better" };

/** What changed since an earlier run by a metric: over all examples, and on how many slices. */
export function sinceSentence(overview: Overview, since: Since, one: Since["counts"][number]): string {
  const metric = metricOf(overview, one.metric);
  const whole = since.overall.find((other) => other.metric === one.metric);
  const change = whole?.value_change;
  const called = !change
    ? "not tested"
    : change.significant
      ? `significantly ${WORDS[change.direction] ?? "changed"}`
      : "no significant change";
  const overall =
    whole?.now.value == null || whole.then.value == null
      ? ""
      : `Over all examples, ${metric.name} went from ${format.estimate(metric, whole.then)} to ${format.estimate(metric, whole.now)}: ${called}. `;
  return (
    `${overall}Of ${format.plural(one.value_compared, "slice")} tested in both runs, ${metric.name} is significantly ` +
    `worse than then on ${format.count(one.value_worse)} and better on ${format.count(one.value_better)}.`
  );
}

/** How many slices are significantly worse and better, of how many tested. */
export function counts(overview: Overview, metric: Metric): string {
  const tests = testsOf(overview, metric);
  if (!tests) return "";
  if (tests.blind) return `No slice could be tested: ${tests.blind}.`;
  const better = tests.significant - tests.degraded;
  const tested = format.plural(tests.tested, "tested slice");
  const worse = `${tests.degraded ? format.count(tests.degraded) : "none"} significantly worse`;
  if (overview.alternative === "worse") return `Of ${tested}, ${worse}.`;
  if (overview.alternative === "better") return `Of ${tested}, ${format.count(better)} significantly better.`;
  return `Of ${tested}, ${worse} and ${format.count(better)} significantly better.`;
}

/** The smallest falls that the run would have noticed; nothing where they are not known. */
export function noticeable(overview: Overview, metric: Metric): string {
  const falls = testsOf(overview, metric)?.noticeable ?? [];
  if (!falls.length) return "";
  const size = ({ fall }: (typeof falls)[number]) => format.size(metric, fall);
  const parts = falls.map((one) =>
    one.n == null ? `by ${size(one)} over all examples` : `by ${size(one)} on slices of ${counted(metric, one.n)}`,
  );
  const way = metric.higher_is_better ? "lower" : "higher";
  return `Noticed with a probability of ${format.share(falls[0]?.power ?? 0)}: ${metric.name} ${way} ${parts.join(", ")}.`;
}

/** What a slice is compared with: the earlier model, or all examples. */
export function referenceOf(change: Change): number | undefined {
  return change.before?.value ?? change.reference;
}

/** What stands beside the value of a slice. */
function againstText(metric: Metric, change: Change): string {
  const reference = referenceOf(change);
  const against = reference == null ? "nothing" : format.value(metric, reference);
  const interval = format.differences(metric, change.delta?.lo, change.delta?.hi);
  return `against ${against} ${change.before ? "before" : "overall"}: ${interval}; ${format.plural(change.n, "example")}`;
}

/** The same of a slice that came near to being significantly worse. */
function missText(metric: Metric, change: Change): string {
  return `${againstText(metric, change)}, q ${format.probability(format.log(change.p_adjusted))}`;
}

/** How far a finding's value is from what is expected: corrected, with the interval, and as observed. */
export function gap(metric: Metric, one: Finding): string {
  const { difference, low, high } = one.corrected;
  const interval = format.differences(metric, low, high);
  return `difference ${format.difference(metric, difference)} (${interval}), observed ${format.difference(metric, one.difference)}${confirmed(metric, one)}`;
}

/** The same on the reserved examples, or how many these are; nothing where none were reserved. */
function confirmed(metric: Metric, { confirmed }: Finding): string {
  if (!confirmed) return "";
  const { examples, difference, low, high } = confirmed;
  const reserved = format.plural(examples, "reserved example");
  if (difference == null) return `, not measured on ${reserved}`;
  return `, on ${reserved} ${format.difference(metric, difference)} (${format.differences(metric, low, high)})`;
}

/** The examples of a finding, which of some metrics are not all of the slice. */
export function counted(metric: Metric, n: number): string {
  return metric.counted ? `${format.count(n)} ${metric.counted}` : format.plural(n, "example");
}

/** The share of all that counts against the metric in the findings so far; nothing where it is not known. */
function held(metric: Metric, finding: Finding): string {
  if (finding.held_share == null) return "";
  return `; ${format.share(finding.held_share)} of all ${format.isShare(metric) ? "errors" : "loss"}${finding.rank > 1 ? " so far" : ""}`;
}

export interface Called {
  state: State;
  word: string;
}

export interface Verdict extends Called {
  title: string;
}

const PASSED = {
  worse: "No regression found",
  drift: "No drift found",
  any: "No regression and no drift found",
  failing: "No topic fails",
};

/** The result by a shape and a word. */
export function stateOf({ gate, global: overall, tests }: Pick<Overview, "gate" | "global" | "tests">): Called {
  if (gate?.passed) return { state: "passed", word: "Passed" };
  if (gate) return gate.exit_code === 2 ? { state: "none", word: "Not testable" } : { state: "failed", word: "Failed" };
  if (overall.some(hasFallen) || tests.some(({ degraded }) => degraded > 0)) return { state: "worse", word: "Worse" };
  if (tests.some(({ significant }) => significant > 0)) return { state: "better", word: "Better" };
  return { state: "none", word: tests.length ? "Nothing found" : "Measured" };
}

/** The result in a line: by a shape, a word, and what there is to say of it. */
export function verdictOf(overview: Overview, store: Store | null): Verdict {
  const { gate } = overview;
  const called = stateOf(overview);
  if (gate?.passed) {
    const passed = gate.fail_on ? PASSED[gate.fail_on] : "All thresholds are met";
    return { ...called, title: gate.known ? `${passed} besides ${format.plural(gate.known, "known slice")}` : passed };
  }
  const title = titleOf(overview, store);
  const reason = gate?.reasons[0] ?? "";
  return { ...called, title: gate?.exit_code === 2 ? reason || title : title || reason };
}

function hasFallen(change: Change): boolean {
  return change.significant && change.direction === "degraded";
}

function titleOf(overview: Overview, store: Store | null): string {
  const fallen = overview.global.find(hasFallen);
  if (fallen?.before?.value != null && fallen.after.value != null) {
    const metric = metricOf(overview, fallen.metric);
    const way = metric.higher_is_better ? "fell" : "rose";
    return `${metric.name} ${way} from ${format.value(metric, fallen.before.value)} to ${format.value(metric, fallen.after.value)}`;
  }
  for (const metric of overview.metrics) {
    const found = overview.findings.filter((finding) => finding.metric === metric.key && finding.direction === "worse");
    const held = found.at(-1)?.held_share;
    const groups = format.plural(found.length, "group");
    if (held != null) return `${groups} ${found.length === 1 ? "holds" : "hold"} ${format.share(held)} of the ${format.isShare(metric) ? "errors" : "loss"}`;
    if (found.length) return `${metric.name} is worse in ${groups}`;
    const degraded = testsOf(overview, metric)?.degraded ?? 0;
    if (degraded) return `${metric.name} is worse on ${format.plural(degraded, "slice")}`;
  }
  const reason = overview.gate?.reasons[0];
  if (reason) return reason;
  if (!overview.tests.length) return store?.shift ? overview.summary.split(". ")[0] ?? overview.title : overview.title;
  if (overview.tests.every(({ blind }) => blind)) return "No slice could be tested";
  const better = overview.findings.filter(({ direction }) => direction === "better").length;
  return better ? `${format.plural(better, "group")} improved, none got worse` : "No slice is significantly worse";
}

/** A metric outside all groups in which it is worse. */
export function outsideOf(overview: Overview, metric: Metric): number | undefined {
  return overview.findings.filter((finding) => finding.metric === metric.key && finding.direction === "worse").at(-1)?.rate_outside;
}

/** What the title leaves open: of all examples, the groups and the rest. */
export function leadOf(overview: Overview): string {
  const metric = primary(overview);
  if (!overview.tests.length) return overview.summary;
  const parts: string[] = [];
  const { gate } = overview;
  if (gate?.tolerated) parts.push(`Tolerated: ${gate.tolerated}.`);
  const whole = overview.global.find((change) => change.metric === metric.key);
  const outside = outsideOf(overview, metric);
  if (overview.comparison === "overall" && outside !== undefined && whole?.after.value != null) {
    parts.push(
      `${metric.name} is ${format.value(metric, outside)} outside the groups, ${format.value(metric, whole.after.value)} over all examples.`,
    );
  }
  if (whole?.improved && whole.degraded && format.isShare(metric)) {
    parts.push(`${format.plural(whole.improved.n, "example")} newly right, ${format.count(whole.degraded.n)} newly wrong.`);
  }
  parts.push(counts(overview, metric));
  return parts.join(" ");
}

/** A model, and the columns that have its answers. */
export function modelText(overview: Overview, one: Overview["models"][number]): string {
  const more = [...(overview.models.length > 1 ? [one.role] : []), ...one.columns.map((name) => `column ${name}`)];
  return more.length ? `${one.name} (${more.join(", ")})` : one.name;
}

function findingText(overview: Overview, finding: Finding): string {
  const metric = metricOf(overview, finding.metric);
  const isChange = overview.comparison === "baseline";
  const shown = isChange ? format.difference : format.value;
  return (
    `${metric.name} ${isChange ? "changed by " : ""}${shown(metric, finding.value)} ` +
    `where ${shown(metric, finding.expected)} is expected: ${gap(metric, finding)}; ` +
    `${counted(metric, finding.n)}${held(metric, finding)}`
  );
}

/** A slice in a text: its name, and what it is where a person named it. */
function called(slice: Slice | undefined, id: string): string {
  if (!slice) return id;
  const exact = slice.conditions.map(({ text }) => text).join(" & ");
  const phrases = slice.phrases.length ? `: ${slice.phrases.join(", ")}` : "";
  return `${slice.name}${exact && exact !== slice.name ? ` (${exact})` : ""}${phrases}`;
}

/** The overview as a text for a mail. */
export function asText(overview: Overview): string {
  const lines = [overview.title, ""];
  if (overview.tests.length && overview.lead) lines.push(overview.lead);
  for (const reason of overview.gate?.reasons ?? []) lines.push(`- ${reason}`);
  for (const metric of overview.tests.length ? overview.metrics : []) {
    lines.push(overall(overview, metric));
    const counted = counts(overview, metric);
    if (counted) lines.push(counted);
    for (const { name, change } of testsOf(overview, metric)?.nearest ?? []) {
      const value = change.after.value == null ? "undefined" : format.value(metric, change.after.value);
      lines.push(`Nearest to significantly worse: ${name}: ${value} ${missText(metric, change)}`);
    }
    const falls = noticeable(overview, metric);
    if (falls) lines.push(falls);
  }
  if (!overview.tests.length) lines.push(overview.summary);
  for (const model of overview.finding_models) {
    const found = overview.findings.filter(
      (one) => one.metric === model.metric && one.direction === model.direction,
    );
    if (!found.length) continue;
    lines.push("", `Findings, ${metricOf(overview, model.metric).name}, ${model.direction}:`);
    for (const one of found) {
      lines.push(`${one.rank}. ${called(sliceOf(overview, one.slice_id), one.slice_id)}`, `   ${findingText(overview, one)}`);
    }
  }
  const { since } = overview;
  if (since) {
    lines.push("", `Since the earlier run of ${format.date(since.created_at)}:`);
    lines.push(...since.counts.map((one) => sinceSentence(overview, since, one)));
  }
  lines.push("", `Data: ${overview.dataset.name}, ${format.plural(overview.dataset.n, "example")}`);
  if (overview.dataset.label) lines.push(`Label: ${overview.dataset.label}`);
  lines.push(`Models: ${overview.models.map((one) => modelText(overview, one)).join(", ")}`);
  lines.push(`Made: ${format.date(overview.created_at)}`);
  if (overview.notes.length) lines.push("", "Notes:", ...overview.notes.map((one) => `- ${one}`));
  return `${lines.join("\n")}\n`;
}
