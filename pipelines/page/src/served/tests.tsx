// Tests: suggestions of a topic are judged by a key each, and the tree grows.
import { useEffect, useRef, useState } from "preact/hooks";

import { type ViewGiven, views } from "../extensions";
import * as format from "../format";
import { get, post } from "./api";
import { useAsking } from "./asking";
import "./features.css";
import { LongText } from "./long_text";

interface Test {
  id: string;
  topic: string;
  input: string;
  second_input: string;
  output: string;
  label: string;
  labeler: string;
  expectation: string;
  value: string;
  origin: string;
  score: number | null;
}

interface Begun {
  tree: string | null;
  model: string;
  topics: { topic: string; shown: string; tests: number }[];
  proposers: string[];
}

interface OfTopic {
  topic: string;
  shown: string;
  tests: Test[];
  total: number;
  scored: number;
  failing: number;
  suggestions: Test[];
  undo: boolean;
  trouble: string;
  remarks: string[];
}

interface After {
  undo: boolean;
  trouble: string;
}

interface Round {
  suggestions: Test[];
  yields: { proposer: string; proposals: number; failing: number; guesses: number; per_hundred: number }[];
  notes: string[];
}

const LABELS = { v: "pass", b: "fail", c: "off_topic" } as const;
type Key = keyof typeof LABELS;
const WORDS: Record<string, string> = { pass: "pass", fail: "fail", off_topic: "off topic", "": "not judged" };

function Tests() {
  const [begun, begin] = useState<Begun | null>(null);
  const [now, show] = useState<OfTopic | null>(null);
  const [round, end] = useState<Round | null>(null);
  const [said, say] = useState("");
  const [edited, edit] = useState<Test | null>(null);
  const [at, move] = useState(0);
  const asking = useAsking();
  const list = useRef<HTMLOListElement>(null);

  const open = (topic: string) =>
    asking.ask(async (signal) => {
      show(await post<OfTopic>("tests/topic", { topic }, signal));
      move(0);
    });
  useEffect(() => {
    asking.ask(async (signal) => {
      const found = await get<Begun>("tests", signal);
      begin(found);
      if (found.tree !== null) show(await post<OfTopic>("tests/topic", { topic: "" }, signal));
    });
  }, []);

  const waiting = now?.suggestions ?? [];
  const place = Math.min(at, Math.max(0, waiting.length - 1));
  useEffect(() => {
    if (!edited) list.current?.querySelector<HTMLElement>(`[data-place="${place}"]`)?.focus();
  }, [place, waiting.length, edited]);

  const follow = (after: After) => (old: OfTopic | null) => old && { ...old, undo: after.undo, trouble: after.trouble };
  const judge = (test: Test | undefined, key: Key) =>
    test &&
    asking.ask(async (signal) => {
      const after = await post<After & { test: Test }>("tests/judge", { id: test.id, label: LABELS[key] }, signal);
      show((old) => {
        const next = follow(after)(old);
        const judged = after.test;
        return (
          next && {
            ...next,
            suggestions: next.suggestions.filter((one) => one.id !== test.id),
            tests: [judged, ...next.tests.filter((one) => one.id !== test.id)],
            total: next.total + (next.tests.some((one) => one.id === test.id) ? 0 : 1),
          }
        );
      });
      say(`Saved: ${WORDS[LABELS[key]]}.`);
    });
  const drop = (test: Test | undefined) =>
    test &&
    asking.ask(async (signal) => {
      const after = await post<After>("tests/remove", { ids: [test.id] }, signal);
      show((old) => {
        const next = follow(after)(old);
        const others = (tests: Test[]) => tests.filter((one) => one.id !== test.id);
        return next && { ...next, suggestions: others(next.suggestions), tests: others(next.tests) };
      });
      say("Removed.");
    });
  const undo = () =>
    asking.ask(async (signal) => {
      await post("tests/undo", {}, signal);
      show(await post<OfTopic>("tests/topic", { topic: now?.topic ?? "" }, signal));
      say("The last change is taken back.");
    });
  const suggest = (number: number, proposers: string[]) =>
    asking.ask(async (signal) => {
      say("Tests are being proposed and scored.");
      const found = await post<Round>("tests/suggest", { topic: now?.topic ?? "", number, proposers }, signal);
      end(found);
      show((old) => old && { ...old, suggestions: found.suggestions });
      move(0);
      say(`${format.plural(found.suggestions.length, "suggestion")}, those that fail first.`);
    });
  const save = (test: Test, columns: Partial<Test>) =>
    asking.ask(async (signal) => {
      const after = await post<After & { test: Test }>("tests/edit", { id: test.id, ...columns }, signal);
      const replaced = (tests: Test[]) => tests.map((one) => (one.id === test.id ? after.test : one));
      show((old) => {
        const next = follow(after)(old);
        return next && { ...next, suggestions: replaced(next.suggestions), tests: replaced(next.tests) };
      });
      edit(null);
      say("Saved, and scored again.");
    });

  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target instanceof HTMLElement && event.target.matches("input, select, textarea, button")) return;
      const key = event.key.toLowerCase();
      const test = waiting[place];
      if (key in LABELS && !event.repeat) judge(test, key as Key);
      else if (key === "z" && now?.undo && !event.repeat) undo();
      else if (key === "delete") drop(test);
      else if (key === "enter" && test) edit(test);
      else if (key === "arrowdown") move(Math.min(place + 1, waiting.length - 1));
      else if (key === "arrowup") move(Math.max(place - 1, 0));
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });

  if (begun?.tree === null) {
    return (
      <main>
        <h1 class="view" tabIndex={-1}>
          Tests
        </h1>
        <p>No test tree was named: start slicebeam serve with --tree and --tree-model.</p>
      </main>
    );
  }
  return (
    <main>
      <h1 class="view" tabIndex={-1}>
        Tests
      </h1>
      {begun && now && (
        <>
          <p>
            The tests of {begun.tree}, for the model {begun.model}. A suggestion goes into the tree with the label that you
            give it: <kbd>V</kbd> the output is right, <kbd>B</kbd> it is wrong, <kbd>C</kbd> off topic; <kbd>Enter</kbd>{" "}
            edits, <kbd>Delete</kbd> removes, <kbd>Z</kbd> undoes, the arrows move. What the test expects becomes what you
            say.
          </p>
          {now.remarks.map((one, at) => (
            <p key={at} class="legend">
              {one}
            </p>
          ))}
          <Ask begun={begun} now={now} open={open} suggest={suggest} isBusy={asking.isBusy} />
          {now.trouble && <p role="alert">{now.trouble}</p>}
          <section aria-labelledby="waiting">
            <h2 id="waiting">{format.plural(waiting.length, "suggestion")}</h2>
            {edited ? (
              <Edit key={edited.id} test={edited} begun={begun} save={save} leave={() => edit(null)} />
            ) : (
              <ol class="judged" ref={list} aria-busy={asking.isBusy}>
                {waiting.map((test, number) => (
                  <li key={test.id} data-place={number} tabIndex={number === place ? 0 : -1} onFocus={() => move(number)}>
                    <One test={test} />
                    <p class="answers">
                      {(Object.keys(LABELS) as Key[]).map((key) => (
                        <button type="button" key={key} tabIndex={-1} onClick={() => judge(test, key)}>
                          <kbd>{key.toUpperCase()}</kbd> {WORDS[LABELS[key]]}
                        </button>
                      ))}
                      <button type="button" tabIndex={-1} onClick={() => edit(test)}>
                        Edit
                      </button>
                      <button type="button" tabIndex={-1} onClick={() => drop(test)}>
                        Remove
                      </button>
                    </p>
                  </li>
                ))}
              </ol>
            )}
            <p class="answers">
              <button type="button" aria-keyshortcuts="z" disabled={!now.undo} onClick={undo}>
                <kbd>Z</kbd> undo
              </button>
            </p>
          </section>
          {round && <Yields round={round} />}
          <Known now={now} judge={judge} edit={edit} drop={drop} />
        </>
      )}
      {asking.error && <p role="alert">{asking.error}</p>}
      <p role="status">{asking.isBusy && !now ? "The tree is being read and scored." : said}</p>
    </main>
  );
}

interface AskGiven {
  begun: Begun;
  now: OfTopic;
  open: (topic: string) => void;
  suggest: (number: number, proposers: string[]) => void;
  isBusy: boolean;
}

function Ask({ begun, now, open, suggest, isBusy }: AskGiven) {
  const [number, want] = useState(20);
  const [proposer, choose] = useState("");
  return (
    <form
      class="fields"
      onSubmit={(event) => {
        event.preventDefault();
        suggest(number, proposer ? [proposer] : []);
      }}
    >
      <label>
        Topic
        <select value={now.topic} disabled={isBusy} onChange={(event) => open(event.currentTarget.value)}>
          {begun.topics.map((one) => (
            <option key={one.topic} value={one.topic}>
              {one.shown} ({format.plural(one.tests, "test")})
            </option>
          ))}
        </select>
      </label>
      <label>
        What proposes
        <select value={proposer} onChange={(event) => choose(event.currentTarget.value)}>
          <option value="">all that have what they need</option>
          {begun.proposers.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </select>
      </label>
      <label>
        Suggestions
        <input type="number" required min={1} max={200} value={number} onInput={(event) => want(event.currentTarget.valueAsNumber)} />
      </label>
      <button disabled={isBusy}>Suggest tests</button>
    </form>
  );
}

function One({ test }: { test: Test }) {
  return (
    <>
      <p class="test">
        <LongText text={test.input} />
        {test.second_input && (
          <>
            {" "}
            / <LongText text={test.second_input} />
          </>
        )}{" "}
        → <strong>{test.output || "no output"}</strong>
      </p>
      <p class="legend">
        {test.expectation ? `${test.expectation} ${test.value}`.trim() : "Nobody knows what is right: judge the output"};{" "}
        {test.score === null
          ? "no failure score"
          : `failure score ${test.score.toFixed(2)} (no interval: one test), ${test.score > 0.5 ? "fails" : "passes"}`}
        {test.label && `; labelled ${WORDS[test.label] ?? test.label} by ${test.labeler || "nobody who is named"}`}
        {test.origin && `; ${test.origin}`}; in {test.topic || "/"}
      </p>
    </>
  );
}

interface EditGiven {
  test: Test;
  begun: Begun;
  save: (test: Test, columns: Partial<Test>) => void;
  leave: () => void;
}

function Edit({ test, begun, save, leave }: EditGiven) {
  const [input, write] = useState(test.input);
  const [topic, put] = useState(test.topic);
  const first = useRef<HTMLTextAreaElement>(null);
  useEffect(() => first.current?.focus(), []);
  return (
    <form
      class="fields"
      onKeyDown={(event) => event.key === "Escape" && leave()}
      onSubmit={(event) => {
        event.preventDefault();
        save(test, {
          ...(input === test.input ? {} : { input }),
          ...(topic === test.topic ? {} : { topic }),
        });
      }}
    >
      <label>
        Input
        <textarea ref={first} rows={3} required value={input} onInput={(event) => write(event.currentTarget.value)} />
      </label>
      <label>
        Topic
        <input list="topics" value={topic} onInput={(event) => put(event.currentTarget.value)} />
        <datalist id="topics">
          {begun.topics.map((one) => (
            <option key={one.topic} value={one.topic} />
          ))}
        </datalist>
      </label>
      <button disabled={input === test.input && topic === test.topic}>Save, and score again</button>
      <button type="button" onClick={leave}>
        Leave as it is
      </button>
    </form>
  );
}

function Yields({ round }: { round: Round }) {
  return (
    <section>
      <h2>What each proposer found</h2>
      <table>
        <thead>
          <tr>
            <th scope="col">Proposer</th>
            <th scope="col">Proposals</th>
            <th scope="col">Failing, by known answers</th>
            <th scope="col">Failures per 100</th>
            <th scope="col">For a person to say</th>
          </tr>
        </thead>
        <tbody>
          {round.yields.map((one) => (
            <tr key={one.proposer}>
              <th scope="row">{one.proposer}</th>
              <td>{one.proposals}</td>
              <td>{one.failing}</td>
              <td>{one.per_hundred.toFixed(0)}</td>
              <td>{one.guesses}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {round.notes.map((one, at) => (
        <p key={at} class="legend">
          {one}
        </p>
      ))}
    </section>
  );
}

interface KnownGiven {
  now: OfTopic;
  judge: (test: Test, key: Key) => void;
  edit: (test: Test) => void;
  drop: (test: Test) => void;
}

function Known({ now, judge, edit, drop }: KnownGiven) {
  return (
    <section>
      <h2>
        {format.plural(now.total, "test")} in {now.shown}
      </h2>
      <p class="legend">
        {format.count(now.failing)} of the {format.count(now.scored)} that were scored fail when this list was made.
        {now.total > now.tests.length && ` Those that fail most are listed: ${format.count(now.tests.length)}.`} slicebeam adapt
        run gives each topic its interval.
      </p>
      <details>
        <summary>Show the tests</summary>
        <ol class="judged">
          {now.tests.map((test) => (
            <li key={test.id}>
              <One test={test} />
              <p class="answers">
                {(Object.keys(LABELS) as Key[]).map((key) => (
                  <button type="button" key={key} onClick={() => judge(test, key)}>
                    {WORDS[LABELS[key]]}
                  </button>
                ))}
                <button type="button" onClick={() => edit(test)}>
                  Edit
                </button>
                <button type="button" onClick={() => drop(test)}>
                  Remove
                </button>
              </p>
            </li>
          ))}
        </ol>
      </details>
    </section>
  );
}

views.push({
  name: "tests",
  title: "Tests",
  isHere: (content) => content.has_tests === true,
  component: (_: ViewGiven) => <Tests />,
});
