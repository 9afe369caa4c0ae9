// The rows that are shown, as a file for spreadsheets, which runs nothing in them.
import { type Columns, type NumberName, type Store } from "./store";

const COLUMNS: NumberName[] = [
  "value",
  "value_low",
  "value_high",
  "reference",
  "complement",
  "delta",
  "ci_low",
  "ci_high",
  "p_value",
  "q_value",
];
// As `pipelines/attribution/spreadsheet_cells.py`: a program that splits at other characters finds cells
// within a field, and text is quoted wherever one may begin.
const FORMULA = /(^|[,;|\t\r\n"])(?='*[ \u00a0\u3000]*[=+\-@\uff1d\uff0b\uff0d\uff20\u2212\t\r])/g;

export function quoted(text: string): string {
  return text.replace(FORMULA, "$1'");
}

function cell(text: string): string {
  const safe = quoted(text);
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function number(name: NumberName, held: number): string {
  if (Number.isNaN(held)) return "";
  if (name !== "p_value" && name !== "q_value") return String(Number(held.toPrecision(7)));
  // A logarithm: of what is below any number of a spreadsheet the text is exact.
  if (held === -Infinity) return "0";
  const exponent = Math.floor(held);
  return `${(10 ** (held - exponent)).toPrecision(5)}e${exponent}`;
}

export function csv(store: Store, columns: Columns, metric: string, rows: Uint32Array): string {
  const lines = [["slice_id", "slice", "n", "metric", ...COLUMNS, "significant", "label", "test", "reason"].join(",")];
  for (const row of rows) {
    const text = (name: "label" | "test" | "reason") =>
      cell(columns.texts[name][columns.codes[name][row] as number] ?? "");
    lines.push(
      [
        cell(store.ids[row] as string),
        cell(store.nameOf(row)),
        store.n[row],
        cell(metric),
        ...COLUMNS.map((name) => number(name, columns.numbers[name][row] as number)),
        columns.significant[row] ? "true" : "false",
        text("label"),
        text("test"),
        text("reason"),
      ].join(","),
    );
  }
  return `${lines.join("\r\n")}\r\n`;
}

export function download(text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" }));
  link.download = "slices.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
