// The playground: one input, what both models say of it, and the slices that it falls in.
import { useEffect, useState } from "preact/hooks";

import { type ViewGiven, views } from "../extensions";
import * as format from "../format";
import { Link } from "../link";
import { hashOf } from "../route";
import { primary } from "../verdict";
import { post } from "./api";
import { useAsking } from "./asking";
import "./features.css";

interface Field {
  name: string;
  value: string;
  type: string;
}

interface Example {
  row: number;
  fields: Field[];
  models: { is: "old" | "new"; name: string }[];
}

interface Answer {
  models: { is: "old" | "new"; name: string; predicted?: string; scores?: [string, number][]; error?: string }[];
  slices: string[];
  unknown: number;
}

function Playground({ content, store, id }: ViewGiven) {
  const [example, show] = useState<Example | null>(null);
  const [values, fill] = useState<Record<string, string>>({});
  const [answer, hear] = useState<Answer | null>(null);
  const asking = useAsking();
  const answered = (given: Record<string, string>, signal: AbortSignal) =>
    post<Answer>("playground/answer", { values: given }, signal).then(hear);
  const begin = (row?: number) =>
    asking.ask(async (signal) => {
      const found = await post<Example>("playground/example", row === undefined ? {} : { row }, signal);
      const given = Object.fromEntries(found.fields.map((one) => [one.name, one.value]));
      show(found);
      fill(given);
      await answered(given, signal);
    });
  useEffect(() => begin(/^\d+$/.test(id) ? Number(id) : undefined), [id]);
  return (
    <main>
      <h1 class="view" tabIndex={-1}>
        Playground
      </h1>
      <p role="status">{asking.isBusy && !example ? "The data is opened, and the models are loaded." : ""}</p>
      {example && (
        <>
          <section aria-live="polite">
            <h2>What the models say</h2>
            {example.models.length === 0 && (
              <p>No model was named: start slicebeam serve with --model, and --baseline-model for the old one.</p>
            )}
            {answer && <Said answer={answer} />}
          </section>
          <section>
            <h2>The input</h2>
            <p>It begins as row {format.count(example.row)} of the data. An empty field is missing.</p>
            <form
              class="fields grid"
              onSubmit={(event) => {
                event.preventDefault();
                asking.ask((signal) => answered(values, signal));
              }}
            >
              {example.fields.map((one) => (
                <label key={one.name}>
                  <span>
                    {one.name} <small>{one.type}</small>
                  </span>
                  <input
                    value={values[one.name] ?? ""}
                    onInput={(event) => fill({ ...values, [one.name]: event.currentTarget.value })}
                  />
                </label>
              ))}
              <p class="answers">
                <button disabled={asking.isBusy}>Ask the models</button>
                <button type="button" disabled={asking.isBusy} onClick={() => begin()}>
                  Another example
                </button>
              </p>
            </form>
          </section>
          {answer && <Slices answer={answer} content={content} store={store} />}
        </>
      )}
      {asking.error && <p role="alert">{asking.error}</p>}
    </main>
  );
}

function Said({ answer }: { answer: Answer }) {
  const predicted = new Set(answer.models.map((one) => one.predicted));
  return (
    <>
      <dl>
        {answer.models.map((one) => (
          <SaidBy key={one.is} one={one} />
        ))}
      </dl>
      {answer.models.length === 2 && (
        <p>
          <strong>{predicted.size === 1 ? "Both say the same." : "They differ."}</strong>
        </p>
      )}
    </>
  );
}

function SaidBy({ one }: { one: Answer["models"][number] }) {
  return (
    <>
      <dt>
        {one.is} model <small>{one.name}</small>
      </dt>
      <dd>
        {one.error ? `It failed: ${one.error}` : <b>{one.predicted}</b>}{" "}
        {one.scores && <small>{one.scores.map(([name, share]) => `${name}: ${format.share(share)}`).join(", ")}</small>}
      </dd>
    </>
  );
}

function Slices({ answer, content, store }: Pick<ViewGiven, "content" | "store"> & { answer: Answer }) {
  const metric = primary(content);
  return (
    <section aria-live="polite">
      <h2>{format.plural(answer.slices.length, "slice")} of the document that it falls in</h2>
      <ul>
        {answer.slices.map((id) => {
          const detail = store.details.get(id);
          const delta = detail?.changes.find((one) => one.metric === metric.key);
          return (
            <li key={id}>
              <Link to={hashOf("slice", id)}>{detail?.name ?? id}</Link>{" "}
              {delta?.delta?.value != null && (
                <small>
                  {metric.name} {format.difference(metric, delta.delta.value)} (
                  {format.differences(metric, delta.delta.lo, delta.delta.hi)}
                  {delta.significant ? ", significant" : ""})
                </small>
              )}
            </li>
          );
        })}
      </ul>
      {answer.unknown > 0 && (
        <p class="note">
          Of {format.plural(answer.unknown, "further slice")} it is not known: listed examples, or an embedding is
          needed.
        </p>
      )}
    </section>
  );
}

views.push({
  name: "playground",
  title: "Playground",
  isHere: (content) => !content.views.includes("shift"),
  component: Playground,
});
