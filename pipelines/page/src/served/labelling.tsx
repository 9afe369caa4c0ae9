// Labelling: which slice and words, then one item after the other.
import { useEffect, useState } from "preact/hooks";

import { documentChanged, sliceSections, type ViewGiven, views } from "../extensions";
import * as format from "../format";
import { Link } from "../link";
import type { Overview } from "../model";
import { hashOf } from "../route";
import type { Detail, Store } from "../store";
import { get, post } from "./api";
import { useAsking } from "./asking";
import "./features.css";
import { LabelItem, type Labelled } from "./label_item";

interface Listed {
  labels: { slice_id: string; text: string; drawn: number; open: boolean }[];
  folder: string;
}

interface Begin {
  slice_id: string;
  text: string;
  budget?: number;
  looks?: number;
  train?: boolean;
}

interface Published {
  decision: string;
  revision: string | null;
  proposed: string | null;
}

// The page is drawn anew when a revision has come: what was decided is said after that.
let decided = "";

function Labelling({ store, id }: ViewGiven) {
  const [now, show] = useState<Labelled | null>(null);
  const [name, call] = useState("");
  const [said, say] = useState(decided);
  const asking = useAsking();
  useEffect(() => {
    decided = "";
  }, []);
  const begin = (given: Begin) =>
    asking.ask(async (signal) => {
      say("");
      show(await post<Labelled>("labels/begin", given, signal));
    });
  const end = () =>
    now &&
    asking.ask(async () => {
      await post("labels/end", { desk: now.desk });
      show(null);
    });
  const publish = () =>
    now &&
    asking.ask(async () => {
      const done = await post<Published>("labels/publish", { desk: now.desk });
      show(null);
      const where = done.revision ? `Written to ${done.revision}.` : "The document says so already.";
      const better = done.proposed ? ` A better slice is proposed: ${done.proposed}.` : "";
      say((decided = `Decision: ${done.decision}. ${where}${better}`));
      if (done.revision) await documentChanged();
    });
  return (
    <main>
      <h1 class="view" tabIndex={-1}>
        Labelling
      </h1>
      {now ? (
        <LabelItem
          first={now}
          name={name}
          draw={(budget, train) => begin({ slice_id: now.slice_id, text: now.text, budget, train })}
          end={end}
          publish={publish}
        />
      ) : (
        <Choose key={id} store={store} id={id} name={name} call={call} begin={begin} isBusy={asking.isBusy} />
      )}
      {asking.error && <p role="alert">{asking.error}</p>}
      <p role="status">
        {asking.isBusy && !now ? "The examples are being read; a discovery's are embedded, which takes a while." : said}
      </p>
    </main>
  );
}

interface ChooseGiven {
  store: Store;
  id: string;
  name: string;
  call: (name: string) => void;
  begin: (given: Begin) => void;
  isBusy: boolean;
}

function Choose({ store, id, name, call, begin, isBusy }: ChooseGiven) {
  const details = [...store.details.values()];
  const [chosen, choose] = useState(store.details.has(id) ? id : (details[0]?.slice_id ?? ""));
  const [text, write] = useState(words(store.details.get(chosen)));
  const [budget, plan] = useState(60);
  const [looks, allow] = useState(1);
  const [listed, list] = useState<Listed | null>(null);
  useEffect(() => {
    void get<Listed>("labels").then(list, () => list(null));
  }, []);
  if (!details.length) return <p>The document lists no slices to label.</p>;
  return (
    <>
      <p>
        Are words true of a slice's examples, and does the slice hold what they are true of? Some examples of the slice
        and some others are drawn; you say yes, no or unsure of each.
      </p>
      <form
        class="fields"
        onSubmit={(event) => {
          event.preventDefault();
          begin({ slice_id: chosen, text: text.trim(), budget, ...(looks > 1 ? { looks } : {}) });
        }}
      >
        <label>
          Slice
          <select
            value={chosen}
            onChange={(event) => {
              choose(event.currentTarget.value);
              write(words(store.details.get(event.currentTarget.value)));
            }}
          >
            {details.map((one) => (
              <option key={one.slice_id} value={one.slice_id}>
                {one.name}
              </option>
            ))}
          </select>
        </label>
        <label>
          Words that may be true of its examples
          <input required maxLength={2000} value={text} onInput={(event) => write(event.currentTarget.value)} />
        </label>
        <label>
          Labels in this round
          <input
            type="number"
            required
            min={1}
            max={100000}
            value={budget}
            onInput={(event) => plan(event.currentTarget.valueAsNumber)}
          />
        </label>
        <label>
          Looks that you plan, in all rounds
          <input
            type="number"
            required
            min={1}
            max={100}
            value={looks}
            onInput={(event) => allow(event.currentTarget.valueAsNumber)}
          />
        </label>
        <label>
          Your name, which is kept with the labels
          <input maxLength={60} value={name} onInput={(event) => call(event.currentTarget.value)} />
        </label>
        <button disabled={isBusy}>Begin</button>
      </form>
      {listed && listed.labels.length > 0 && (
        <section>
          <h2>Begun before</h2>
          <ul>
            {listed.labels.map((one) => (
              <li key={`${one.slice_id} ${one.text}`}>
                <button
                  type="button"
                  disabled={isBusy}
                  onClick={() => begin({ slice_id: one.slice_id, text: one.text })}
                >
                  Go on with “{one.text}”
                </button>{" "}
                of {store.details.get(one.slice_id)?.name ?? one.slice_id}: {format.plural(one.drawn, "item")} drawn
                {one.open ? ", open in this server" : ""}
              </li>
            ))}
          </ul>
          <p class="legend">The labels are in {listed.folder}.</p>
        </section>
      )}
    </>
  );
}

/** The words that a slice may be described by: those that were held against it, found, or its name. */
function words(detail: Detail | undefined): string {
  return detail?.attribution?.text ?? detail?.found?.phrases[0]?.text ?? detail?.name ?? "";
}

/** Labels estimate what a discovery says of its groups: their examples are found by its embeddings. */
function canLabel(content: Overview): boolean {
  return content.can_label === true;
}

function ToLabelling({ content, store, id }: { content: Overview; store: Store; id: string }) {
  if (!canLabel(content) || !store.details.has(id)) return null;
  return (
    <p>
      <Link to={hashOf("labelling", id)}>Label its examples</Link>, to see whether words describe it.
    </p>
  );
}

views.push({
  name: "labelling",
  title: "Labelling",
  isHere: canLabel,
  component: Labelling,
});
sliceSections.push({ component: ToLabelling });
