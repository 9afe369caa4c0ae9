// What the page is given: the parts of a ChangeList that it shows, as overview.py makes them.

import type { Chip } from "./chips";

export interface Estimate {
  value?: number;
  lo?: number;
  hi?: number;
  confidence?: number;
}

export interface Metric {
  key: string;
  name: string;
  range: [number | null, number | null];
  higher_is_better: boolean;
  primary: boolean;
  // The examples that a finding's n counts; absent where that is all of a slice.
  counted?: string | null;
}

export interface Moved {
  n: number;
  share: Estimate;
}

export interface Change {
  metric: string;
  n: number;
  after: Estimate;
  before?: Estimate;
  reference?: number;
  delta?: Estimate;
  complement?: number;
  // How single examples changed between two models.
  inconsistency?: number;
  improved?: Moved;
  degraded?: Moved;
  p_value?: number;
  p_adjusted?: number;
  test?: string;
  inputs?: Record<string, number>;
  reason?: string;
  significant: boolean;
  direction: "improved" | "degraded" | "none";
}

export interface Slice {
  slice_id: string;
  name: string;
  conditions: Chip[];
  // What describes a discovered group.
  phrases: string[];
  share: number;
  n: number;
  changes: Change[];
}

/** Of labels, a row each, how often each class is predicted. */
export interface ConfusionTables {
  classes: unknown[];
  inside: number[][];
  outside: number[][];
  inside_before?: number[][];
  outside_before?: number[][];
}

export interface Finding {
  metric: string;
  direction: "worse" | "better";
  rank: number;
  slice_id: string;
  n: number;
  value: number;
  expected: number;
  // Without what selecting the slice adds.
  corrected: { difference: number; low: number | null; high: number | null };
  // Of reserved examples, the difference only where there are enough.
  confirmed?: { examples: number; difference: number | null; low: number | null; high: number | null };
  difference: number;
  interval: [number | null, number | null];
  // On earlier data.
  before?: number;
  held_share?: number;
  rate_outside?: number;
}

export interface FindingModel {
  metric: string;
  direction: "worse" | "better";
  candidates: number;
  stop: string;
  reason?: string;
  // Examples by which of the first ten findings they are in, the largest sets first.
  intersections?: Intersection[];
}

export interface Intersection {
  findings: number[];
  share: number;
  value: number | null;
}

export interface MetricTests {
  metric: string;
  tested: number;
  significant: number;
  degraded: number;
  blind?: string;
  // Where nothing is significantly worse: the slices that came nearest, and the falls that a run notices.
  nearest: { slice_id: string; name: string; change: Change }[];
  noticeable: { n?: number | null; fall: number; power: number }[];
}

/** Whether a run passes; the reasons in order of certainty. */
export interface Gate {
  fail_on?: "worse" | "drift" | "any" | "failing";
  passed: boolean;
  exit_code: 0 | 1 | 2;
  reasons: string[];
  tolerated?: string;
  known?: number;
}

/** A slice that is known to be worse, and what it is in this run. */
export interface KnownSlice {
  line: string;
  state: "worse" | "not worse" | "absent" | "expired";
  slices: string[];
}

/** A part of the change of a metric over all examples. */
export interface MovedPart {
  name: string;
  slice_id?: string | null;
  change: Estimate;
  value?: string | null;
  share_then?: number | null;
  share_now?: number | null;
}

export interface WhyMoved {
  metric: string;
  then: number;
  now: number;
  change: number;
  new_kinds: number;
  new_share: number;
  new_values: string[];
  mix?: Estimate | null;
  model?: Estimate | null;
  by_mix: MovedPart[];
  by_model: MovedPart[];
}

export interface FeatureDrift {
  feature: string;
  p_adjusted: number;
  significant: boolean;
  stability_index: number;
  value: string;
  share_then: number;
  share_now: number;
  new_values: string[];
  gone_values: string[];
}

export interface EarlierData {
  uri: string[];
  n: number;
  moved: WhyMoved[];
  drift: FeatureDrift[];
}

export interface Overview {
  title: string;
  summary: string;
  // PASS or FAIL with the reason, or else what is worse over all examples; empty for neither.
  lead: string;
  command: string;
  tool_version: string;
  created_at: string;
  revision: number;
  dataset: { name: string; n: number; fingerprint: string; label: string | null };
  models: { role: "before" | "after"; name: string; columns: string[] }[];
  comparison: "overall" | "baseline" | "earlier";
  metrics: Metric[];
  global: Change[];
  tests: MetricTests[];
  corrected_for?: string;
  alternative?: "worse" | "better" | "both";
  findings: Finding[];
  finding_models: FindingModel[];
  // Of each metric, ids of the slices that are shown where there are no findings: the worse, then the better.
  worst: Record<string, string[]>;
  slices: Slice[];
  gate?: Gate;
  known?: KnownSlice[];
  // The data that today's is compared with.
  earlier_data?: EarlierData;
  since?: Since;
  // What the page has besides this view.
  views: ("slices" | "clusters" | "shift")[];
  // Of a served page: whether items can be drawn to be labelled.
  can_label?: boolean;
  // Whether a test tree is served beside it.
  has_tests?: boolean;
  notes: string[];
  left_out: string[];
}

type Matrix = (number | null)[][];

/** Items of a label and a bin of the difficulty. */
export interface Stratum {
  label: unknown;
  low: number | null;
  high: number | null;
  missing: boolean;
  size: number;
  calls: number;
  variance?: number | null;
  optimal_calls?: number | null;
}

/** The weighted sum of the cells that --focus names. */
export interface Focus {
  of: string;
  before: number;
  after: Estimate;
  shift: Estimate;
  p_value: number;
  significant: boolean;
  direction: "improved" | "degraded" | "none";
}

export interface Shift {
  labels: unknown[];
  predictions: unknown[];
  old_matrix: Matrix;
  new_matrix: Matrix;
  shift: Matrix;
  shift_lo: Matrix;
  shift_hi: Matrix;
  confidence: number;
  corrected_for: string;
  changed: { label: unknown; prediction: unknown; shift: Estimate; p_adjusted: number }[];
  frobenius_bound: number;
  stopped: "budget" | "target_error" | "pool";
  old_from: "predictions" | "document";
  method: "plus" | "masa" | "proportional";
  reliance?: number | null;
  focus?: Focus | null;
  strata: Stratum[];
  cost: {
    calls: number;
    replayed: number;
    no_result: number;
    unaccounted: number;
    currency: string | null;
    spent: number | null;
  };
  slices: {
    slice_id: string;
    calls: number;
    old_matrix: Matrix | null;
    new_matrix: Matrix;
    shift: Matrix;
    shift_lo: Matrix;
    shift_hi: Matrix;
  }[];
}

export interface Discovery {
  encoder: string;
  dimensions: number;
  kept_dimensions: number;
  kept_variance: number;
  discovery_examples: number;
  evaluation_examples: number;
  resolutions: { field: string; components: number; nonempty?: number; r2?: number; r2_expected?: number }[];
  described: number;
}

export interface Moment {
  n: number;
  value?: number;
  value_interval?: Estimate;
  delta: Estimate;
  p_adjusted?: number;
  significant: boolean;
}

export type SinceKind = "worse" | "better" | "new" | "gone";

export interface SinceSlice {
  slice_id: string;
  name: string;
  metric?: string;
  status: "new" | "gone" | "stays" | "neither";
  // Worse and better: significantly; new and gone: it crossed the threshold without a significant change;
  // null: none of these.
  kind: SinceKind | null;
  now?: Moment;
  then?: Moment;
  missing?: string;
  difference?: Estimate;
  p_adjusted?: number;
  significant: boolean;
  direction: "improved" | "degraded" | "none";
  value_change?: { difference: Estimate; p_adjusted: number; significant: boolean; direction: string };
  // The row above that changed alike and holds mostly the same examples.
  like?: string;
}

/** A metric over all examples of this run and of the earlier one. */
interface OverallSince {
  metric: string;
  now: Estimate;
  then: Estimate;
  value_change?: { significant: boolean; direction: string };
}

/** How many slices of both runs changed significantly, by one metric. */
interface SinceCounts {
  metric: string;
  compared: number;
  new: number;
  gone: number;
  worse: number;
  better: number;
  value_compared: number;
  value_worse: number;
  value_better: number;
}

export interface Since {
  created_at: string;
  overall: OverallSince[];
  counts: SinceCounts[];
  corrected_for: string;
  metric: string;
  slices: SinceSlice[];
  // How many more are in the document.
  more: number;
}
