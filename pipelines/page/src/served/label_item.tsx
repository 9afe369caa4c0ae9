// One item to label: the words as the question, and the keys that answer it.
import { useEffect, useRef, useState } from "preact/hooks";

import * as format from "../format";
import { post } from "./api";
import { useAsking } from "./asking";
import { LongText } from "./long_text";
import { Standing, type StandingOf } from "./standing";

/** What the program answers to each request. */
export interface Labelled {
  desk: string;
  slice_id: string;
  name: string;
  text: string;
  item: { id: string; fields: [string, string][] } | null;
  left: number;
  drawn: number;
  undo: boolean;
  labels: string;
  standing: StandingOf;
}

const ANSWERS = { y: "yes", n: "no", u: "unsure" } as const;
type Key = keyof typeof ANSWERS;

interface Given {
  first: Labelled;
  name: string;
  draw: (budget: number, train: boolean) => void;
  end: (said: string) => void;
  publish: () => void;
}

export function LabelItem({ first, name, draw, end, publish }: Given) {
  const [now, show] = useState(first);
  const [said, say] = useState("");
  const asking = useAsking();
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => show(first), [first]);
  useEffect(() => heading.current?.focus(), []);

  const { item, desk } = now;
  const answer = (key: Key) => {
    if (!item) return;
    const label = ANSWERS[key];
    asking.ask(async (signal) => {
      show(await post<Labelled>("labels/label", { desk, name, item: item.id, label }, signal));
      say(`Saved: ${label}.`);
    });
  };
  const undo = () =>
    asking.ask(async (signal) => {
      show(await post<Labelled>("labels/undo", { desk }, signal));
      say("Your last label is taken back.");
    });
  const look = () =>
    asking.ask(async (signal) => show(await post<Labelled>("labels/look", { desk }, signal)));

  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
      if (event.target instanceof HTMLElement && event.target.matches("input, select, textarea")) return;
      const key = event.key.toLowerCase();
      if (key === "z" && now.undo) undo();
      else if (key in ANSWERS) answer(key as Key);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });

  const hasLabels = now.standing.precision !== undefined;
  return (
    <>
      <section class="item" aria-labelledby="question">
        <h2 id="question" ref={heading} tabIndex={-1}>
          {item ? <>Is this true of the item: “{now.text}”?</> : <>“{now.text}”, of slice {now.name}</>}
        </h2>
        {item ? (
          <dl aria-busy={asking.isBusy}>
            {item.fields.map(([field, value]) => (
              <Field key={`${item.id} ${field}`} field={field} value={value} />
            ))}
          </dl>
        ) : (
          <p>All items that were drawn are labelled.</p>
        )}
        <p class="answers">
          {item &&
            (Object.keys(ANSWERS) as Key[]).map((key) => (
              <button type="button" key={key} aria-keyshortcuts={key} onClick={() => answer(key)}>
                <kbd>{key.toUpperCase()}</kbd> {ANSWERS[key]}
              </button>
            ))}
          <button type="button" aria-keyshortcuts="z" disabled={!now.undo} onClick={undo}>
            <kbd>Z</kbd> undo
          </button>
        </p>
        <p role="status">
          {said} {format.count(now.left)} of {format.count(now.drawn)} left.
        </p>
        {asking.error && <p role="alert">{asking.error}</p>}
      </section>
      <section>
        <h2>So far: {format.plural(now.standing.labelled, "label")}</h2>
        <Standing standing={now.standing} />
        <p class="answers">
          {hasLabels && !now.standing.decision && (
            <button type="button" onClick={look}>
              Look now (look {now.standing.looked + 1} of {now.standing.looks})
            </button>
          )}
          {now.left === 0 && (
            <button type="button" onClick={() => draw(50, false)}>
              Draw 50 more
            </button>
          )}
          {now.left === 0 && now.standing.decision === "update" && (
            <button type="button" onClick={() => draw(60, true)}>
              Draw 60 to train a better slice with
            </button>
          )}
          {hasLabels && (
            <button type="button" onClick={publish}>
              Write the estimates into the document
            </button>
          )}
          <button type="button" onClick={() => end("")}>
            End, and keep the labels
          </button>
        </p>
        <p class="legend">
          Each label is on the disk before the next item comes, in {now.labels}, which slicebeam attribute reads.
        </p>
      </section>
    </>
  );
}

function Field({ field, value }: { field: string; value: string }) {
  return (
    <>
      <dt>{field}</dt>
      <dd>
        <LongText text={value} shown={2000} />
      </dd>
    </>
  );
}
