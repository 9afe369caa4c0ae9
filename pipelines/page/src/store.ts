// The slices that the page holds, unpacked: columns of numbers, and the sections of the document.
import type { Chip } from "./chips";
import type { Change, ConfusionTables, Discovery, Estimate, Metric, Shift, SinceSlice } from "./model";

type Numbers = Uint8Array | Uint16Array | Uint32Array | Int32Array | Float32Array | Float64Array;
interface Place {
  type: keyof typeof WIDTHS;
  at: number;
  length: number;
}
interface Texts {
  texts: (string | null)[];
  codes: Place;
}

const WIDTHS = { u8: 1, u16: 2, u32: 4, i32: 4, f32: 4, f64: 8 };

export interface Condition extends Chip {
  // With long values and lists cut, where there are such; a document names slices by it.
  short?: string;
  // What an address names it by where its short text is that of several.
  key?: string;
  field: string;
  op: string;
  value: unknown;
}

export interface Density {
  most: number;
  low: number;
  high: number;
  // How many steps the size and the delta have.
  across: number;
  up: number;
  // Step of the size, step of the delta, how many slices, and how many of them are significant.
  cells: [number, number, number, number][];
}

const NUMBERS = [
  "value",
  "value_low",
  "value_high",
  "reference",
  "complement",
  "complement_error",
  "delta",
  "ci_low",
  "ci_high",
  "p_value",
  "q_value",
] as const;
const TEXTS = ["label", "test", "reason"] as const;
export type NumberName = (typeof NUMBERS)[number];

export interface Columns {
  // Of p and q the decimal logarithm; NaN is what is not known.
  numbers: Record<NumberName, Float32Array>;
  codes: Record<(typeof TEXTS)[number], Uint16Array>;
  texts: Record<(typeof TEXTS)[number], (string | null)[]>;
  significant: Uint8Array;
  parent: Int32Array;
  finding: Uint8Array;
  // How many slices of the whole table are significant.
  allSignificant: number;
  density: Density | undefined;
}

export interface Found {
  improved?: number;
  degraded?: number;
  tied?: number;
  opposite_to_global: boolean;
  phrases: { text: string; source: string }[];
  overlaps: { slice_id: string; jaccard: number }[];
}

export interface Example {
  role: string;
  id?: string | number;
  fields: [string, string][];
}

export interface Detail {
  slice_id: string;
  name: string;
  /** What people call it, in lower case. */
  words: string;
  definition: string;
  description?: string;
  notes: string[];
  origin: { method: string };
  impact?: number;
  refinement?: { label: string; parent?: string; p_refine?: number };
  same_examples_as: string[];
  found?: Found;
  attribution?: { text: string; state: string; precision: Estimate; recall: Estimate; missed: Estimate };
  changes: Change[];
  confusion?: ConfusionTables;
  examples?: Example[];
}

export interface GroupMap {
  field: string;
  // Share of the variance of the embeddings that the two axes hold.
  shown: number;
  places: [number, number][];
}

interface Content {
  rows: number;
  all: number;
  from_table: boolean;
  conditions: Condition[];
  names: Record<string, string>;
  odd_ids: Record<string, string>;
  ids: Place;
  n: Place;
  lengths: Place;
  codes: Place;
  metrics: Record<string, Record<string, unknown>>;
  since: SinceSlice[];
  details: Detail[];
  shift: Shift | null;
  discovery: Discovery | null;
  maps: GroupMap[];
}

/** Return what `tables.packed_tables` packed. */
export async function unpacked(text: string): Promise<Store> {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const whole = await new Response(stream).arrayBuffer();
  const size = new DataView(whole).getUint32(0, true);
  const content = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 4, size))) as Content;
  return new Store(content, new Uint8Array(whole, 4 + size));
}

function column(bytes: Uint8Array, place: Place): Numbers {
  const { at, length, type } = place;
  const width = WIDTHS[type];
  const found = new Uint8Array(length * width);
  for (let plane = 0; plane < width; plane++) {
    const from = at + plane * length;
    for (let row = 0; row < length; row++) found[row * width + plane] = bytes[from + row] as number;
  }
  switch (type) {
    case "u8":
      return found;
    case "u16":
      return new Uint16Array(found.buffer);
    case "u32":
      return new Uint32Array(found.buffer);
    case "i32":
      return new Int32Array(found.buffer);
    case "f32":
      return new Float32Array(found.buffer);
    case "f64":
      return new Float64Array(found.buffer);
  }
}

export class Store {
  readonly rows: number;
  readonly all: number;
  readonly fromTable: boolean;
  readonly conditions: Condition[];
  readonly n: Float64Array;
  /** How many conditions a slice has, and where they begin among `codes`. */
  readonly lengths: Uint8Array;
  readonly starts: Uint32Array;
  readonly codes: Uint32Array;
  readonly metrics = new Map<string, Columns>();
  readonly details = new Map<string, Detail>();
  /** What changed since an earlier run, of the slices that the document says it of. */
  readonly since = new Map<string, SinceSlice[]>();
  readonly shift: Shift | null;
  readonly discovery: Discovery | null;
  readonly maps: GroupMap[];
  readonly ids: string[];
  readonly #names: Record<string, string>;
  readonly #rowOf = new Map<string, number>();
  #rowOfKey: Map<string, number> | undefined;
  #codeOfKey: Map<string, number> | undefined;

  constructor(content: Content, bytes: Uint8Array) {
    this.rows = content.rows;
    this.all = content.all;
    this.fromTable = content.from_table;
    this.conditions = content.conditions;
    this.shift = content.shift;
    this.discovery = content.discovery;
    this.maps = content.maps;
    this.#names = content.names;
    this.n = column(bytes, content.n) as Float64Array;
    this.lengths = column(bytes, content.lengths) as Uint8Array;
    this.codes = column(bytes, content.codes) as Uint32Array;
    this.starts = new Uint32Array(this.rows + 1);
    for (let row = 0; row < this.rows; row++) {
      this.starts[row + 1] = (this.starts[row] as number) + (this.lengths[row] as number);
    }
    this.ids = idsOf(column(bytes, content.ids) as Uint8Array, this.rows, content.odd_ids);
    this.ids.forEach((id, row) => this.#rowOf.set(id, row));
    for (const [name, held] of Object.entries(content.metrics)) this.metrics.set(name, columnsOf(bytes, held));
    for (const one of content.since) this.since.set(one.slice_id, [...(this.since.get(one.slice_id) ?? []), one]);
    for (const one of content.details) this.details.set(one.slice_id, one);
  }

  rowOf(id: string): number | undefined {
    return this.#rowOf.get(id);
  }

  codesOf(row: number): Uint32Array {
    return this.codes.subarray(this.starts[row], this.starts[row + 1]);
  }

  conditionsOf(row: number): string[] {
    return Array.from(this.codesOf(row), (code) => this.conditions[code]?.text ?? "");
  }

  /** The conditions as chips; of a slice without any its name. */
  chipsOf(row: number): Chip[] {
    const codes = Array.from(this.codesOf(row));
    return codes.length ? codes.map((code) => this.chipOf(code)) : [{ text: this.nameOf(row) }];
  }

  chipOf(code: number): Chip {
    return this.conditions[code] ?? { text: "" };
  }

  /** The name that a person gave, or the conditions. */
  nameOf(row: number): string {
    const given = this.details.get(this.ids[row] as string)?.name ?? this.#names[row];
    const isGiven = given !== undefined && given !== Array.from(this.codesOf(row), (code) => this.#short(code)).join(" & ");
    return isGiven ? given : this.conditionsOf(row).join(" & ");
  }

  #short(code: number): string {
    const one = this.conditions[code];
    return one?.short ?? one?.text ?? "";
  }

  /** What a condition is called in an address: its short text, or its JSON where several have this text. */
  keyOf(code: number): string {
    return this.conditions[code]?.key ?? this.#short(code);
  }

  /** The code of a condition that an address names; -1 where the page has no such condition. */
  codeOf(key: string): number {
    this.#codeOfKey ??= new Map(this.conditions.map((_, code) => [this.keyOf(code), code]));
    return this.#codeOfKey.get(key) ?? -1;
  }

  /** The row of the slice of these conditions, if the page has it. */
  rowOfCodes(codes: Iterable<number>): number | undefined {
    if (!this.#rowOfKey) {
      this.#rowOfKey = new Map();
      for (let row = 0; row < this.rows; row++) {
        if (this.lengths[row]) this.#rowOfKey.set(keyOf(this.codesOf(row)), row);
      }
    }
    return this.#rowOfKey.get(keyOf(codes));
  }

  /** The row of the slice of one value of a feature, if the page has it. */
  rowOfValue(field: string, value: unknown): number | undefined {
    const code = this.conditions.findIndex((one) => one.field === field && one.op === "==" && one.value === value);
    return code < 0 ? undefined : this.rowOfCodes([code]);
  }

  /** The rows that have one condition less, with the condition that falls away. */
  parents(row: number): { row: number | undefined; code: number }[] {
    const codes = Array.from(this.codesOf(row));
    if (codes.length < 2) return [];
    return codes.map((code) => ({ row: this.rowOfCodes(codes.filter((one) => one !== code)), code }));
  }

  /** The rows that have one condition more. */
  children(row: number): { row: number; code: number }[] {
    const own = new Set(this.codesOf(row));
    if (!own.size) return [];
    const found = [];
    for (let other = 0; other < this.rows; other++) {
      if (this.lengths[other] !== own.size + 1) continue;
      let added = -1;
      let missing = 0;
      for (let at = this.starts[other] as number; at < (this.starts[other + 1] as number); at++) {
        const code = this.codes[at] as number;
        if (!own.has(code)) {
          added = code;
          missing++;
        }
      }
      if (missing === 1) found.push({ row: other, code: added });
    }
    return found;
  }
}

function columnsOf(bytes: Uint8Array, held: Record<string, unknown>): Columns {
  const numbers = Object.fromEntries(
    NUMBERS.map((name) => [name, column(bytes, held[name] as Place)]),
  ) as Columns["numbers"];
  const own = (name: string) => held[name] as Texts;
  const density = held["density"] as Density;
  return {
    numbers,
    codes: Object.fromEntries(TEXTS.map((name) => [name, column(bytes, own(name).codes)])) as Columns["codes"],
    texts: Object.fromEntries(TEXTS.map((name) => [name, own(name).texts])) as Columns["texts"],
    significant: column(bytes, held["significant"] as Place) as Uint8Array,
    parent: column(bytes, held["parent"] as Place) as Int32Array,
    finding: column(bytes, held["finding"] as Place) as Uint8Array,
    allSignificant: held["significant_in_all"] as number,
    density: density.cells ? density : undefined,
  };
}

function idsOf(bytes: Uint8Array, rows: number, odd: Record<string, string>): string[] {
  const pairs = Array.from({ length: 256 }, (_, one) => one.toString(16).padStart(2, "0"));
  const found = [];
  for (let row = 0; row < rows; row++) {
    let id = "";
    for (let at = 8 * row; at < 8 * row + 8; at++) id += pairs[bytes[at] as number] as string;
    found.push(odd[row] ?? id);
  }
  return found;
}

function keyOf(codes: Iterable<number>): string {
  return Array.from(codes).sort((one, other) => one - other).join();
}

/** Whether a change of this sign is for the worse. */
export function isWorse(metric: Metric, delta: number): boolean {
  return delta !== 0 && delta > 0 !== metric.higher_is_better;
}
