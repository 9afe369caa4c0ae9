// The table of the page: aligned columns, a head that stays, and cards on a small screen.
import type { ComponentChildren } from "preact";

export interface Column<Row> {
  head: ComponentChildren;
  /** What a card calls the number; the head where it is a text. */
  name?: string;
  kind?: "number" | "plot" | "rank" | "name" | "text";
  cell: (row: Row) => ComponentChildren;
}

export interface Group<Row> {
  title?: ComponentChildren;
  rows: Row[];
}

interface Given<Row> {
  label: string;
  columns: (Column<Row> | null | false)[];
  groups: Group<Row>[];
  keyOf: (row: Row) => string;
  class?: string;
}

/** Rows in groups; a cell that is `kind: "name"` heads its row. Roles are said, as cards take a table's away. */
export function Table<Row>({ label, columns: all, groups, keyOf, class: more = "" }: Given<Row>) {
  const columns = all.filter((column): column is Column<Row> => Boolean(column));
  return (
    <table role="table" class={`cards ${more}`} aria-label={label}>
      <thead role="rowgroup">
        <tr role="row">
          {columns.map(({ head, kind = "text" }, at) => (
            <th key={at} role="columnheader" scope="col" class={kind}>
              {head}
            </th>
          ))}
        </tr>
      </thead>
      {groups.map(({ title, rows }, place) => (
        <tbody key={place} role="rowgroup">
          {title && (
            <tr role="row" class="group">
              <th role="rowheader" colSpan={columns.length}>
                {title}
              </th>
            </tr>
          )}
          {rows.map((row) => (
            <tr role="row" key={keyOf(row)}>
              {columns.map(({ kind = "text", cell, name, head }, at) =>
                kind === "name" ? (
                  <th key={at} role="rowheader" scope="row" class={kind}>
                    {cell(row)}
                  </th>
                ) : (
                  <td key={at} role="cell" class={kind} data-name={name ?? (typeof head === "string" ? head : "")}>
                    {cell(row)}
                  </td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      ))}
    </table>
  );
}
