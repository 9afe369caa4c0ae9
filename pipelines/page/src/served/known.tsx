// Marks a slice as known in the file of --known: the next run does not fail for it.
import { useEffect, useState } from "preact/hooks";

import { sliceSections } from "../extensions";
import type { Overview } from "../model";
import type { Store } from "../store";
import { post } from "./api";
import { useAsking } from "./asking";

interface Entry {
  line: string;
}

interface Answer {
  file: string | null;
  entry: Entry | null;
  within: Entry[];
}

function Known({ content, store, id }: { content: Overview; store: Store; id: string }) {
  const asking = useAsking();
  const [answer, take] = useState<Answer | null>(null);
  const [note, write_note] = useState("");
  const [until, end] = useState("");
  const [said, say] = useState("");
  const isListed = store.details.has(id);
  useEffect(() => {
    if (isListed) asking.ask(async (signal) => take(await post<Answer>("known/of", { slice_id: id }, signal)));
  }, [id, isListed, content.revision]);
  if (!isListed || (answer && !answer.file)) return null;
  const mark = (is_known: boolean) =>
    asking.ask(async () => {
      const more = is_known ? { note, until: until || null } : {};
      const marked = await post<Answer>("known", { slice_id: id, is_known, ...more });
      take(marked);
      say(`${is_known ? "Marked as known" : "No longer known"}. Written to ${marked.file}.`);
    });
  return (
    <section aria-label="Known">
      <h2>Known</h2>
      <p role="status">{said}</p>
      {answer?.within.map(({ line }) => <p key={line}>Within {line}</p>)}
      {answer?.entry && (
        <p>
          {answer.entry.line}{" "}
          <button type="button" disabled={asking.isBusy} onClick={() => mark(false)}>
            No longer known
          </button>
        </p>
      )}
      {answer && !answer.entry && (
        <form
          class="fields"
          onSubmit={(event) => {
            event.preventDefault();
            mark(true);
          }}
        >
          <label>
            Why it is known
            <input value={note} maxLength={20000} onInput={(event) => write_note(event.currentTarget.value)} />
          </label>
          <label>
            Last day on which it counts
            <input type="date" value={until} onInput={(event) => end(event.currentTarget.value)} />
          </label>
          <button disabled={asking.isBusy}>Mark as known</button>
        </form>
      )}
      {asking.error && <p role="alert">{asking.error}</p>}
    </section>
  );
}

sliceSections.push({ component: Known });
