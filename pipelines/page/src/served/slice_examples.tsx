// The examples of a slice, from the data: what is broken, fixed and both wrong, old beside new.
import { useEffect, useRef, useState } from "preact/hooks";

import { sliceSections } from "../extensions";
import * as format from "../format";
import { Link } from "../link";
import type { Overview } from "../model";
import { hashOf } from "../route";
import type { Store } from "../store";
import { post } from "./api";
import { useAsking } from "./asking";
import { marked, marks, NewSlice } from "./new_slice";
import "./features.css";

interface Cell {
  name: string;
  text: string;
  length: number;
  is?: "label" | "old" | "new";
}

interface Example {
  row: number;
  id: string | null;
  role: string | null;
  outcome: Cell[];
  fields: Cell[];
}

interface Page {
  n: number;
  held: number;
  checked: string;
  is_same: boolean | null;
  roles: Record<string, number>;
  total: number;
  offset: number;
  per_page: number;
  examples: Example[];
}

const SHOWN = 120;
const OUTCOME = { label: "the label", old: "old model", new: "new model" };

interface Given {
  content: Overview;
  store: Store;
  id: string;
}

/** The examples of a slice, which are read when it is opened. */
const SliceExamples = (given: Given) => <Listed key={given.id} {...given} />;

function Listed({ content, store, id }: Given) {
  const [{ yes, no }, count] = useState(marked());
  const [page, show] = useState<Page | null>(null);
  const [role, choose] = useState<string | null>(null);
  const asking = useAsking();
  const ask = (wanted: string | null, offset: number) =>
    asking.ask(async (signal) => {
      choose(wanted);
      show(await post<Page>("examples", { slice_id: id, role: wanted, offset }, signal));
    });
  useEffect(() => ask(null, 0), []);
  return (
    <section>
      <h2>Examples from the data</h2>
      <p role="status">
        {asking.isBusy && !page && "The data is compared with the fingerprint in the document, and read."}
        {page && page.checked}
      </p>
      {asking.error && <p role="alert">{asking.error}</p>}
      {page && (
        <>
          {page.held !== page.n && (
            <p role="alert">
              The data has {format.plural(page.held, "example")} of the slice, and the document{" "}
              {format.count(page.n)}: it is not the data that was tested.
            </p>
          )}
          <Roles page={page} role={role} choose={(one) => ask(one, 0)} />
          <Table page={page} id={id} mark={() => count(marked())} />
          <p class="answers">
            <button type="button" disabled={page.offset === 0} onClick={() => ask(role, page.offset - page.per_page)}>
              Earlier
            </button>
            <button
              type="button"
              disabled={page.offset + page.per_page >= page.total}
              onClick={() => ask(role, page.offset + page.per_page)}
            >
              Later
            </button>
            <span role="status">
              {page.total
                ? `${format.count(page.offset + 1)} to ${format.count(page.offset + page.examples.length)} of ${format.count(page.total)}`
                : "none"}
            </span>
          </p>
          <p class="answers">
            <NewSlice content={content} store={store} way="marked" />
            <span role="status">
              {format.count(yes.length)} marked yes, {format.count(no.length)} no
            </span>
          </p>
        </>
      )}
    </section>
  );
}

function Roles({ page, role, choose }: { page: Page; role: string | null; choose: (one: string | null) => void }) {
  const roles = Object.entries(page.roles);
  if (!roles.length) {
    return <p>No column of the data says which class the model predicts: the examples are in a random order.</p>;
  }
  return (
    <p class="answers" role="group" aria-label="Which examples">
      <button type="button" aria-pressed={role === null} onClick={() => choose(null)}>
        all {format.count(page.held)}
      </button>
      {roles.map(([name, number]) => (
        <button type="button" key={name} aria-pressed={role === name} onClick={() => choose(name)}>
          {name} {format.count(number)}
        </button>
      ))}
    </p>
  );
}

function Table({ page, id, mark }: { page: Page; id: string; mark: () => void }) {
  const [first] = page.examples;
  if (!first) return null;
  const hasIds = page.examples.some((one) => one.id !== null);
  return (
    <div class="scrolled" role="region" aria-label="Examples of the slice" tabIndex={0}>
      <table class="cells">
        <thead>
          <tr>
            <th scope="col">{hasIds ? "Id" : "Row"}</th>
            <th scope="col">Mark</th>
            {first.role !== null && <th scope="col">Models</th>}
            {first.outcome.map((one) => (
              <th scope="col" key={`${one.is} ${one.name}`}>
                {one.name} <small>({one.is && OUTCOME[one.is]})</small>
              </th>
            ))}
            {first.fields.map((one) => (
              <th scope="col" key={one.name}>
                {one.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {page.examples.map((one) => (
            <tr key={one.row}>
              <th scope="row">
                <Link to={hashOf("playground", String(one.row))}>{one.id ?? format.count(one.row)}</Link>
              </th>
              <td>
                <Mark row={one.row} name={one.id ?? format.count(one.row)} change={mark} />
              </td>
              {one.role !== null && (
                <td>
                  <b>{one.role}</b>
                </td>
              )}
              {[...one.outcome, ...one.fields].map((cell, at) => (
                <td key={at}>
                  <Value cell={cell} row={one.row} id={id} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Whether an example is like those that a new slice is to have. */
function Mark({ row, name, change }: { row: number; name: string; change: () => void }) {
  const mark = (value: string) => {
    if (value) marks.set(row, value === "yes");
    else marks.delete(row);
    change();
  };
  const value = marks.has(row) ? (marks.get(row) ? "yes" : "no") : "";
  return (
    <select aria-label={`Mark ${name}`} value={value} onChange={(event) => mark(event.currentTarget.value)}>
      <option value="">–</option>
      <option value="yes">yes</option>
      <option value="no">no</option>
    </select>
  );
}

/** A value of which the beginning is shown; all of it is fetched on demand. */
function Value({ cell, row, id }: { cell: Cell; row: number; id: string }) {
  const [whole, show] = useState<string | null>(null);
  const asking = useAsking();
  const value = useRef<HTMLSpanElement>(null);
  if (cell.length <= SHOWN) return <span class="text">{cell.text}</span>;
  const fetchAll = () =>
    asking.ask(async (signal) => {
      const given = { slice_id: id, row, column: cell.name };
      show(cell.length > cell.text.length ? (await post<{ text: string }>("examples/cell", given, signal)).text : cell.text);
      value.current?.focus();
    });
  return (
    <span class="text" ref={value} tabIndex={-1}>
      {whole ?? `${cell.text.slice(0, SHOWN)}… `}
      {whole === null && (
        <button type="button" class="more" onClick={fetchAll}>
          Show all {format.count(cell.length)} characters
        </button>
      )}
      {asking.error && <span role="alert">{asking.error}</span>}
    </span>
  );
}

sliceSections.push({ component: SliceExamples });
