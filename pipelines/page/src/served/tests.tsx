// Tests: a tree that a person grows with proposers, a key for each suggestion.
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
  shown_topic: string;
  input: string;
  second_input: string;
  output: string;
  label: string;
  labeler: string;
  expectation: string;
  value: string;
  origin: string;
  is_guess: boolean;
  score: number | null;
  before: { output: string; score: number | null } | null;
}

interface Topic {
  topic: string;
  shown: string;
  tests: number;
  failing: number;
}

interface View {
  topic: string;
  topics: Topic[];
  tests: Test[];
  total: number;
  scored: number;
  suggestions: Test[];
  undo: boolean;
  remarks: string[];
}

interface Begun {
  tree: string | null;
  model: string;
  baseline: string | null;
  proposers: string[];
  expectations: string[];
  view: View;
}

interface Round {
  new_topics: { topic: string; shown: string; proposer: string }[];
  yields: { proposer: string; proposals: number; failing: number; guesses: number; per_hundred: number }[];
  notes: string[];
}

const LABELS = { v: "pass", b: "fail", c: "off_topic" } as const;
type Key = keyof typeof LABELS;
const WORDS: Record<string, string> = { pass: "pass", fail: "fail", off_topic: "off topic", "": "not judged" };
const NEW = { input: "", second_input: "", expectation: "", value: "" };
type Texts = typeof NEW & { topic: string };

function Tests() {
  const [begun, begin] = useState<Begun | null>(null);
  const [now, show] = useState<View | null>(null);
  const [round, end] = useState<Round | null>(null);
  const [said, say] = useState("");
  const [edited, edit] = useState<Test | null>(null);
  const [at, move] = useState(0);
  const asking = useAsking();
  const list = useRef<HTMLOListElement>(null);

  useEffect(() => {
    asking.ask(async (signal) => {
      const found = await get<Begun>("tests", signal);
      begin(found);
      if (found.tree !== null) show(found.view);
    });
  }, []);

  const waiting = now?.suggestions ?? [];
  const place = Math.min(at, Math.max(0, waiting.length - 1));
  useEffect(() => {
    if (!edited) list.current?.querySelector<HTMLElement>(`[data-place="${place}"]`)?.focus();
  }, [place, waiting[place]?.id, edited]);

  const send = (path: string, body: object, done: (view: View, round?: Round) => string) =>
    asking.ask(async (signal) => {
      const answer = await post<{ view: View; round?: Round }>(`tests/${path}`, { focus: now?.topic ?? "", ...body }, signal);
      show(answer.view);
      if (answer.round) end(answer.round);
      say(done(answer.view, answer.round));
    });
  const open = (focus: string) =>
    send("topic", { focus }, () => {
      move(0);
      return "";
    });
  const judge = (test: Test | undefined, key: Key) =>
    test && send("judge", { id: test.id, label: LABELS[key] }, () => `Saved: ${WORDS[LABELS[key]]}.`);
  const drop = (test: Test | undefined) => test && send("remove", { ids: [test.id] }, () => "Removed.");
  const undo = () => send("undo", {}, () => "The last change is taken back.");
  const suggest = (number: number, proposers: string[], topics: boolean) => {
    say(topics ? "Topics are being proposed." : "Tests are being proposed and scored.");
    send("suggest", { number, proposers, topics }, (view, found) => {
      move(0);
      return topics
        ? `${format.plural(found?.new_topics.length ?? 0, "topic")} proposed.`
        : `${format.plural(view.suggestions.length, "suggestion")}, those that fail first.`;
    });
  };
  const save = (test: Test, texts: Texts) => {
    const old: Texts = { ...test, topic: test.shown_topic };
    const changed = Object.entries(texts).filter(([name, text]) => text !== old[name as keyof Texts]);
    send("edit", { id: test.id, ...Object.fromEntries(changed) }, () => {
      edit(null);
      return "Saved, and scored again.";
    });
  };
  const add = (texts: Texts) =>
    send("add", texts, () => (texts.expectation ? "The test is in the tree." : "Judge the output: the test is the first suggestion."));
  const addTopic = (topic: string) => send("add-topic", { topic }, () => "The topic is in the tree.");

  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target instanceof HTMLElement && event.target.matches("input, select, textarea, button, summary")) return;
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

  const actions = { judge, edit, drop };
  return (
    <main>
      <h1 class="view" tabIndex={-1}>
        Tests
      </h1>
      {begun?.tree === null && <p>No test tree was named: start slicebeam serve with --tree and --tree-model.</p>}
      {begun && now && (
        <>
          <p>
            {begun.tree}, for the model {begun.model}
            {begun.baseline && <>, beside {begun.baseline}</>}. <kbd>V</kbd> the output is right, <kbd>B</kbd> it is wrong,{" "}
            <kbd>C</kbd> off topic; <kbd>Enter</kbd> edits, <kbd>Delete</kbd> rejects, <kbd>Z</kbd> undoes, the arrows move. The
            test then expects what you say.
          </p>
          {[...now.remarks, ...(round?.notes ?? [])].map((line) => (
            <p key={line} class="legend">
              {line}
            </p>
          ))}
          <datalist id="topics">
            {now.topics.map((one) => (
              <option key={one.topic} value={one.shown} />
            ))}
          </datalist>
          <div class="testing">
            <Topics now={now} open={open} />
            <div>
              <Ask begun={begun} suggest={suggest} isBusy={asking.isBusy} />
              {asking.error && <p role="alert">{asking.error}</p>}
              {round && round.new_topics.length > 0 && (
                <p class="answers">
                  {round.new_topics.map((one) => (
                    <button type="button" key={one.topic} onClick={() => addTopic(one.shown)}>
                      Add {one.shown}
                    </button>
                  ))}
                </p>
              )}
              <section aria-labelledby="waiting">
                <h2 id="waiting">{format.plural(waiting.length, "suggestion")}</h2>
                {edited ? (
                  <Edit
                    key={edited.id}
                    texts={{ ...edited, topic: edited.shown_topic }}
                    begun={begun}
                    save={(texts) => save(edited, texts)}
                    leave={() => edit(null)}
                  />
                ) : (
                  <ol class="judged" ref={list} aria-busy={asking.isBusy}>
                    {waiting.map((test, number) => (
                      <li key={test.id} data-place={number} tabIndex={number === place ? 0 : -1} onFocus={() => move(number)}>
                        <Shown test={test} {...actions} />
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
              <p role="status">{said}</p>
              {round && round.yields.length > 0 && <Yields round={round} />}
              <details>
                <summary>Add a test or a topic</summary>
                <Edit key={now.topic} texts={{ ...NEW, topic: shownTopic(now) }} begun={begun} save={add} saveTopic={addTopic} />
              </details>
              <section>
                <h2>
                  {format.plural(now.total, "test")} in {shownTopic(now)}
                </h2>
                {now.scored < now.total && (
                  <p class="legend">{format.count(now.total - now.scored)} have no score: nobody has judged them.</p>
                )}
                {now.total > now.tests.length && (
                  <p class="legend">Those that fail most are listed: {format.count(now.tests.length)}.</p>
                )}
                <details>
                  <summary>Show the tests</summary>
                  <ol class="judged">
                    {now.tests.map((test) => (
                      <li key={test.id}>
                        <Shown test={test} {...actions} />
                      </li>
                    ))}
                  </ol>
                </details>
              </section>
            </div>
          </div>
        </>
      )}
      {!now && asking.error && <p role="alert">{asking.error}</p>}
      {!now && <p role="status">{asking.isBusy ? "The tree is being read and scored." : said}</p>}
    </main>
  );
}

function shownTopic(now: View): string {
  return now.topics.find((one) => one.topic === now.topic)?.shown ?? now.topic;
}

function Bar({ share, kind = "worse" }: { share: number; kind?: string }) {
  return (
    <svg class="score" aria-hidden="true">
      <rect class="track" width="100%" height="100%" />
      <rect class={`bar ${kind}`} width={`${100 * share}%`} height="100%" />
    </svg>
  );
}

function Topics({ now, open }: { now: View; open: (topic: string) => void }) {
  return (
    <section aria-label="Topics">
      <ul class="topics">
        {now.topics.map((one) => (
          <li key={one.topic}>
            <button type="button" aria-pressed={one.topic === now.topic} onClick={() => open(one.topic)}>
              <span>{"\u2003".repeat(one.topic.split("/").length - 1) + (one.shown.split("/").pop() || "All topics")}</span>
              <small>
                {format.count(one.failing)} of {format.count(one.tests)} fail
              </small>
              <Bar share={one.tests ? one.failing / one.tests : 0} />
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

interface AskGiven {
  begun: Begun;
  suggest: (number: number, proposers: string[], topics: boolean) => void;
  isBusy: boolean;
}

function Ask({ begun, suggest, isBusy }: AskGiven) {
  const [number, want] = useState(20);
  const [proposer, choose] = useState("");
  const chosen = proposer ? [proposer] : [];
  return (
    <form
      class="fields grid"
      onSubmit={(event) => {
        event.preventDefault();
        suggest(number, chosen, false);
      }}
    >
      <label>
        What proposes
        <select value={proposer} onChange={(event) => choose(event.currentTarget.value)}>
          <option value="">all that have what they need</option>
          {begun.proposers.map((one) => (
            <option key={one} value={one}>
              {one === "endpoint" ? "language model" : one}
            </option>
          ))}
        </select>
      </label>
      <label>
        Suggestions
        <input type="number" required min={1} max={200} value={number} onInput={(event) => want(event.currentTarget.valueAsNumber)} />
      </label>
      <p class="answers">
        <button disabled={isBusy}>Suggest tests</button>
        <button type="button" disabled={isBusy} onClick={() => suggest(Math.min(number, 10), chosen, true)}>
          Suggest topics
        </button>
      </p>
    </form>
  );
}

interface ShownGiven {
  test: Test;
  judge: (test: Test, key: Key) => void;
  edit: (test: Test) => void;
  drop: (test: Test) => void;
}

function verdict(score: number | null, isGuess: boolean): string {
  if (score === null) return "no failure score";
  const fails = score > 0.5 ? "fails" : "passes";
  return `failure score ${score.toFixed(2)}, ${isGuess ? "if the guess is right" : fails}`;
}

function Shown({ test, judge, edit, drop }: ShownGiven) {
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
      {test.score !== null && <Bar share={test.score} kind={test.is_guess ? "none" : "worse"} />}
      <p class="legend">
        {test.expectation ? `${test.expectation} ${test.value}`.trim() : "Nobody knows what is right: judge the output"}
        {test.is_guess && " (a guess)"}; {verdict(test.score, test.is_guess)}
        {test.label && `; labelled ${WORDS[test.label] ?? test.label} by ${test.labeler || "nobody who is named"}`}
        {test.origin && `; ${test.origin}`}; in {test.shown_topic}
      </p>
      {test.before && (
        <p class="legend">
          The old model: {test.before.output || "no output"}; {verdict(test.before.score, test.is_guess)}
        </p>
      )}
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
    </>
  );
}

interface EditGiven {
  texts: Texts;
  begun: Begun;
  save: (texts: Texts) => void;
  saveTopic?: (topic: string) => void;
  leave?: () => void;
}

function Edit({ texts, begun, save, saveTopic, leave }: EditGiven) {
  const [input, write] = useState(texts.input);
  const [second_input, writeSecond] = useState(texts.second_input);
  const [topic, put] = useState(texts.topic);
  const [expectation, expect] = useState(texts.expectation);
  const [value, writeValue] = useState(texts.value);
  const first = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    if (leave) first.current?.focus();
  }, []);
  return (
    <form
      class="fields"
      onKeyDown={(event) => event.key === "Escape" && leave?.()}
      onSubmit={(event) => {
        event.preventDefault();
        save({ input, second_input, topic, expectation, value });
      }}
    >
      <label>
        Input
        <textarea ref={first} rows={2} required value={input} onInput={(event) => write(event.currentTarget.value)} />
      </label>
      {begun.view.tests.some((test) => test.second_input) && (
        <label>
          Second input
          <textarea rows={2} value={second_input} onInput={(event) => writeSecond(event.currentTarget.value)} />
        </label>
      )}
      <label>
        Topic
        <input list="topics" value={topic} onInput={(event) => put(event.currentTarget.value)} />
      </label>
      <label>
        Expectation
        <input list="expectations" value={expectation} onInput={(event) => expect(event.currentTarget.value)} />
        <datalist id="expectations">
          {begun.expectations.map((one) => (
            <option key={one} value={one} />
          ))}
        </datalist>
      </label>
      <label>
        Value
        <input value={value} onInput={(event) => writeValue(event.currentTarget.value)} />
      </label>
      <p class="answers">
        <button>{leave ? "Save, and score again" : "Add the test"}</button>
        {saveTopic && (
          <button type="button" onClick={() => saveTopic(topic)}>
            Add the topic
          </button>
        )}
        {leave && (
          <button type="button" onClick={leave}>
            Leave as it is
          </button>
        )}
      </p>
    </form>
  );
}

function Yields({ round }: { round: Round }) {
  return (
    <details>
      <summary>What each proposer found</summary>
      <table>
        <thead>
          <tr>
            <th scope="col">Proposer</th>
            <th scope="col">Proposals</th>
            <th scope="col">Failing, by known answers</th>
            <th scope="col">Failures per 100</th>
            <th scope="col">Guesses</th>
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
    </details>
  );
}

views.push({
  name: "tests",
  title: "Tests",
  isHere: (content) => content.has_tests === true,
  component: (_: ViewGiven) => <Tests />,
});
