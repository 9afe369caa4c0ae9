// Edits of slices, each a revision of the document that can be undone.
import { useEffect, useState } from "preact/hooks";

import { documentChanged, sliceSections, type ViewGiven, views } from "../extensions";
import type { Overview } from "../model";
import { go, hashOf } from "../route";
import type { Store } from "../store";
import { get, post } from "./api";
import { type Asking, useAsking } from "./asking";
import "./features.css";

interface Written {
  revision: number;
  file: string;
  notes: string[];
  slices: string[];
}

interface Journal {
  revision: number;
  edits: { number: number; at: string; op: string; slice: string; what: string; undone: boolean }[];
  undoes: number | null;
  columns: string[];
}

const OPS: Record<string, string> = {
  rename: "renamed",
  describe: "described",
  annotate: "noted",
  attribute: "estimated words",
  add_slice: "added",
  remove_slice: "removed",
  merge: "merged",
  split: "split",
  undo: "undid",
};
// The page is drawn anew when a revision has come: what was done is said after that.
let done = "";

/** Writes a revision, then shows it. */
function write(asking: Asking, path: string, given: object, said: string, next?: (written: Written) => void): void {
  asking.ask(async () => {
    const written = await post<Written>(path, given);
    done = [`${said} Written to ${written.file}.`, ...written.notes].join(" ");
    await documentChanged();
    next?.(written);
  });
}

function useDone(): string {
  const [said] = useState(done);
  useEffect(() => {
    done = "";
  }, []);
  return said;
}

function Edits({ content, store }: ViewGiven) {
  const [journal, list] = useState<Journal | null>(null);
  const [name, call] = useState("");
  const [where, define] = useState("");
  const asking = useAsking();
  const said = useDone();
  const revision = content.revision;
  useEffect(() => {
    asking.ask(async (signal) => list(await get<Journal>("edits", signal)));
  }, [revision]);
  const undoes = journal?.edits.find((one) => one.number === journal.undoes);
  return (
    <main>
      <h1 class="view" tabIndex={-1}>
        Edits
      </h1>
      <p>This is revision {revision}. An edit writes the next one beside it; no revision is ever changed.</p>
      <p role="status">{said}</p>
      {asking.error && <p role="alert">{asking.error}</p>}
      <section>
        <h2>Define a slice</h2>
        <form
          class="fields"
          onSubmit={(event) => {
            event.preventDefault();
            write(asking, "edits/define", { revision, name, where }, "The slice is defined.", ({ slices: [id] }) =>
              go(hashOf("slice", id)),
            );
          }}
        >
          <label>
            Predicate, such as {store.conditions[0]?.text ?? "age < 25 & sex = Female"}
            <input required value={where} maxLength={10000} onInput={(event) => define(event.currentTarget.value)} />
          </label>
          <label>
            Name; without one it is called by its predicate
            <input value={name} maxLength={500} onInput={(event) => call(event.currentTarget.value)} />
          </label>
          <button disabled={asking.isBusy}>Define and count it</button>
        </form>
        {journal && journal.columns.length > 0 && <p class="legend">Columns: {journal.columns.join(", ")}.</p>}
      </section>
      <section>
        <h2>What was done</h2>
        <p>
          <button
            type="button"
            disabled={asking.isBusy || !undoes}
            onClick={() => write(asking, "edits/undo", { revision }, "The last edit is undone.")}
          >
            {undoes ? `Undo edit ${undoes.number}: ${OPS[undoes.op] ?? undoes.op} ${undoes.slice}` : "Nothing to undo"}
          </button>
        </p>
        {journal && (
          <ol class="journal" reversed>
            {journal.edits.map((one) => (
              <li key={one.number} value={one.number}>
                {one.at.slice(0, 16).replace("T", " ")}: {OPS[one.op] ?? one.op} <b>{one.slice}</b>
                {one.what && one.what !== one.slice && <span class="text">: {one.what}</span>}
                {one.undone && " (undone)"}
              </li>
            ))}
          </ol>
        )}
      </section>
    </main>
  );
}

function EditSlice({ content, store, id }: { content: Overview; store: Store; id: string }) {
  const detail = store.details.get(id);
  const said = useDone();
  return (
    <section>
      <h2>Edit</h2>
      <p role="status">{said}</p>
      {detail ? (
        <details>
          <summary>Rename, describe, note or remove it</summary>
          <Forms revision={content.revision} id={id} name={detail.name} description={detail.description ?? ""} />
        </details>
      ) : (
        <Add revision={content.revision} id={id} />
      )}
    </section>
  );
}

function Add({ revision, id }: { revision: number; id: string }) {
  const asking = useAsking();
  return (
    <>
      <p>
        <button
          type="button"
          disabled={asking.isBusy}
          onClick={() => write(asking, "edits/add", { revision, slice_id: id }, "The slice is added.")}
        >
          Add it to the document
        </button>{" "}
        to give it a name, notes and labels.
      </p>
      {asking.error && <p role="alert">{asking.error}</p>}
    </>
  );
}

function Forms({ revision, id, name, description }: { revision: number; id: string; name: string; description: string }) {
  const asking = useAsking();
  const [title, call] = useState(name);
  const [text, describe] = useState(description);
  const [note, write_note] = useState("");
  const slice = { revision, slice_id: id };
  const form = (label: string, button: string, value: string, change: (text: string) => void, send: () => void) => (
    <form
      class="fields"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <label>
        {label}
        <input value={value} maxLength={20000} onInput={(event) => change(event.currentTarget.value)} />
      </label>
      <button disabled={asking.isBusy}>{button}</button>
    </form>
  );
  return (
    <>
      {form("Name", "Rename", title, call, () =>
        write(asking, "edits/rename", { ...slice, name: title }, "Renamed."),
      )}
      {form("Description", "Describe", text, describe, () =>
        write(asking, "edits/describe", { ...slice, text }, "Described."),
      )}
      {form("Note", "Add the note", note, write_note, () =>
        write(asking, "edits/note", { ...slice, note }, "Noted."),
      )}
      <p>
        <button
          type="button"
          disabled={asking.isBusy}
          onClick={() =>
            write(asking, "edits/remove", slice, `${name} is removed; undo brings it back.`, () => go(hashOf("edits")))
          }
        >
          Remove it from the document
        </button>
      </p>
      {asking.error && <p role="alert">{asking.error}</p>}
    </>
  );
}

views.push({
  name: "edits",
  title: "Edits",
  isHere: (content) => !content.views.includes("shift"),
  component: Edits,
});
sliceSections.push({ component: EditSlice });
