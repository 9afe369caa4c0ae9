// A slice of words, of examples that the reader marked, or of an attribute.
import { useEffect, useRef, useState } from "preact/hooks";

import * as format from "../format";
import type { Overview } from "../model";
import { go, hashOf } from "../route";
import type { Store } from "../store";
import { get } from "./api";
import { useAsking } from "./asking";
import { write } from "./writing";
import "./features.css";

/** What slices of this document can be made of. */
interface Ways {
  columns: string[];
  has_words: boolean;
  has_embeddings: boolean;
  has_ids: boolean;
}

type Way = "words" | "marked" | "attribute";

interface Given {
  content: Overview;
  store: Store;
  /** Which is chosen first; without one the first that is possible. */
  way?: Way;
}

/** Marks of examples by their rows: whether they are like those that the slice is to have. */
export const marks = new Map<number, boolean>();

/** The marked rows, those with yes and those with no. */
export function marked(): { yes: number[]; no: number[] } {
  const rows = (is: boolean) => [...marks].filter(([, mark]) => mark === is).map(([row]) => row);
  return { yes: rows(true), no: rows(false) };
}

export function NewSlice(given: Given) {
  const [isOpen, open] = useState(false);
  return (
    <>
      <button type="button" aria-haspopup="dialog" onClick={() => open(true)}>
        New slice
      </button>
      {isOpen && <Dialog {...given} close={() => open(false)} />}
    </>
  );
}

function Dialog({ content, store, way: first, close }: Given & { close: () => void }) {
  const [ways, know] = useState<Ways | null>(null);
  const [chosen, choose] = useState<Way | undefined>(first);
  const [name, call] = useState("");
  const [text, say] = useState("");
  const [threshold, limit] = useState("");
  const [where, define] = useState("");
  const asking = useAsking();
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
    asking.ask(async (signal) => know(await get<Ways>("edits", signal)));
  }, []);
  const way = chosen ?? (ways?.has_words === false ? "attribute" : "words");
  const { yes, no } = marked();
  const send = (event: Event) => {
    event.preventDefault();
    const of = {
      words: { text, threshold: threshold === "" ? null : Number(threshold) },
      marked: { yes, no },
      attribute: { where },
    }[way];
    write(asking, { op: "define", revision: content.revision, name, ...of }, "The slice is defined.", ({ slices: [id] }) => {
      if (way === "marked") marks.clear();
      go(hashOf("slice", id));
    });
  };
  const radio = (value: Way, label: string, isHere: boolean) => (
    <label>
      <input type="radio" name="way" checked={way === value} disabled={!isHere} onChange={() => choose(value)} /> {label}
    </label>
  );
  return (
    <dialog ref={dialog} aria-labelledby="new-slice" onClose={close}>
      <h2 id="new-slice">New slice</h2>
      <form class="fields" onSubmit={send}>
        <fieldset class="answers">
          <legend>Made of</legend>
          {radio("words", "words", ways?.has_words ?? true)}
          {radio("marked", "marked examples", ways ? ways.has_embeddings || ways.has_ids : true)}
          {radio("attribute", "an attribute", true)}
        </fieldset>
        {way === "words" && (
          <>
            <label>
              Words; examples with a similar embedding are in the slice
              <input required value={text} maxLength={10000} onInput={(event) => say(event.currentTarget.value)} />
            </label>
            <label>
              Least cosine similarity; empty for 2 standard deviations above the mean
              <input type="number" min="-1" max="1" step="any" value={threshold} onInput={(event) => limit(event.currentTarget.value)} />
            </label>
          </>
        )}
        {way === "marked" && (
          <p>
            {format.plural(yes.length, "example")} marked yes, {format.count(no.length)} no.{" "}
            {yes.length + no.length === 0 && "Mark them in the table of examples of a slice. "}
            {ways?.has_embeddings && "A classifier of the embeddings finds those like the ones marked yes and unlike those marked no. "}
            {ways?.has_ids && "Where none is marked no, the slice is those marked yes."}
          </p>
        )}
        {way === "attribute" && (
          <>
            <label>
              Predicate, such as {store.conditions[0]?.text ?? "age < 25 & sex = Female"}
              <input required list="conditions" value={where} maxLength={10000} onInput={(event) => define(event.currentTarget.value)} />
            </label>
            <datalist id="conditions">
              {store.conditions.slice(0, 500).map((one) => (
                <option key={one.text} value={one.text} />
              ))}
            </datalist>
            {ways && ways.columns.length > 0 && <p class="legend">Columns: {ways.columns.join(", ")}.</p>}
          </>
        )}
        <label>
          Name; without one it is called by what it is made of
          <input value={name} maxLength={500} onInput={(event) => call(event.currentTarget.value)} />
        </label>
        <p class="answers">
          <button disabled={asking.isBusy || (way === "marked" && !yes.length)}>Define and count it</button>
          <button type="button" onClick={() => dialog.current?.close()}>
            Cancel
          </button>
          <span role="status">{ways && asking.isBusy && "The examples are read and counted."}</span>
        </p>
        {asking.error && <p role="alert">{asking.error}</p>}
      </form>
    </dialog>
  );
}
