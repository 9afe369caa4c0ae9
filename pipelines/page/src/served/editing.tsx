// Edits of slices, each a revision of the document that can be undone.
import { useEffect, useState } from "preact/hooks";

import { sliceSections, type ViewGiven, views } from "../extensions";
import type { Overview } from "../model";
import { go, hashOf } from "../route";
import type { Store } from "../store";
import { get } from "./api";
import { useAsking } from "./asking";
import { NewSlice } from "./new_slice";
import { useDone, write } from "./writing";
import "./features.css";

interface Journal {
  revision: number;
  edits: { number: number; at: string; op: string; slice: string; what: string; undone: boolean }[];
  undoes: number | null;
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
function Edits({ content, store }: ViewGiven) {
  const [journal, list] = useState<Journal | null>(null);
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
      <p>
        <NewSlice content={content} store={store} />
      </p>
      <section>
        <h2>What was done</h2>
        <p>
          <button
            type="button"
            disabled={asking.isBusy || !undoes}
            onClick={() => write(asking, { op: "undo", revision }, "The last edit is undone.")}
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
          onClick={() => write(asking, { op: "add", revision, slice_id: id }, "The slice is added.")}
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
        write(asking, { op: "rename", ...slice, name: title }, "Renamed."),
      )}
      {form("Description", "Describe", text, describe, () =>
        write(asking, { op: "describe", ...slice, text }, "Described."),
      )}
      {form("Note", "Add the note", note, write_note, () =>
        write(asking, { op: "note", ...slice, note }, "Noted."),
      )}
      <p>
        <button
          type="button"
          disabled={asking.isBusy}
          onClick={() =>
            write(asking, { op: "remove", ...slice }, `${name} is removed; undo brings it back.`, () => go(hashOf("edits")))
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
