// The runs in a folder, as of nights: how the last one ended, each at a glance, each metric over all of them.
import * as format from "../format";
import { Badge, Shape } from "../marks";
import type { Change, Metric, Overview } from "../model";
import { Table } from "../table";
import { type Called, overall, primary, stateOf, testsOf } from "../verdict";
import { type Moment, Moments } from "./moments";

export interface Run {
  name: string;
  overview?: Overview;
  error?: string;
}

// Of so many runs, the newest, there is a mark each.
const MOST_SHOWN = 60;
const UNREADABLE: Called = { state: "none", word: "Unreadable" };

const hrefOf = ({ name }: Run) => `runs/${encodeURIComponent(name)}/`;
const calledOf = ({ overview }: Run): Called => (overview ? stateOf(overview) : UNREADABLE);

export function Runs({ runs }: { runs: Run[] }) {
  const shown = runs.slice(0, MOST_SHOWN).reverse();
  const last = runs.find(({ overview }) => overview);
  return (
    <main>
      {last?.overview ? (
        <Last runs={runs} last={last} overview={last.overview} />
      ) : (
        <h1 class="view" tabIndex={-1}>
          No run can be read
        </h1>
      )}
      <ol class="strip" aria-label={`${format.plural(shown.length, "run")}, the oldest first`}>
        {shown.map((run) => {
          const { state, word } = calledOf(run);
          return (
            <li key={run.name}>
              <a href={hrefOf(run)} class={state} aria-label={`${run.name}: ${word}`} title={`${run.name}: ${word}`}>
                <Shape state={state} />
              </a>
            </li>
          );
        })}
      </ol>
      <div class="tiles">
        {last?.overview?.metrics.map((metric) => <Tile key={metric.key} metric={metric} runs={shown} />)}
      </div>
      <section>
        <h2>{format.plural(runs.length, "run")}</h2>
        <List runs={runs} />
      </section>
    </main>
  );
}

/** How the last run ended, and since when. */
function Last({ runs, last, overview }: { runs: Run[]; last: Run; overview: Overview }) {
  const { state, word } = stateOf(overview);
  const readable = runs.filter((run) => run.overview);
  const other = readable.findIndex((run) => calledOf(run).word !== word);
  const row = other < 0 ? readable : readable.slice(0, other);
  const title =
    row.length < 2 ? `The last run, ${last.name}` : `${format.count(row.length)} runs in a row, since ${row.at(-1)?.name}`;
  const failed = readable.filter((run) => calledOf(run).state === "failed").length;
  return (
    <div class="verdict">
      <div class="verdict-line">
        <Badge state={state}>{word}</Badge>
        <h1 tabIndex={-1}>{title}</h1>
      </div>
      <p class="lead">
        {overall(overview, primary(overview))}{" "}
        {failed > 0 && `${format.count(failed)} of ${format.plural(readable.length, "run")} failed.`}
      </p>
    </div>
  );
}

/** A metric over the runs: its last value, what it usually is, and the curve. */
function Tile({ metric, runs }: { metric: Metric; runs: Run[] }) {
  const moments = runs.map((run): Moment => {
    const change = run.overview?.global.find((whole) => whole.metric === metric.key);
    const { value, lo: low, hi: high } = change?.after ?? {};
    return { name: run.name, value: value ?? null, low: low ?? null, high: high ?? null, hasFailed: calledOf(run).state === "failed" };
  });
  const measured = moments.filter(({ value }) => value != null);
  const last = measured.at(-1);
  if (last?.value == null) return null;
  const before = measured.slice(0, -1).map(({ value }) => value as number);
  const usual = before.sort((a, b) => a - b)[before.length >> 1];
  return (
    <section class="tile" aria-label={metric.name}>
      <h2>
        {metric.name}
        {!metric.higher_is_better && <small> lower is better</small>}
      </h2>
      <p class="tile-value">
        <strong>{format.value(metric, last.value)}</strong>{" "}
        {usual !== undefined && `usually ${format.value(metric, usual)}, `}
        95% interval {format.interval(metric, last.low, last.high)}
      </p>
      <Moments
        moments={moments}
        metric={metric}
        label={`${metric.name} in ${format.plural(measured.length, "run")}; the table below has the numbers`}
        width={400}
        height={180}
        left={48}
      />
    </section>
  );
}

function List({ runs }: { runs: Run[] }) {
  const of = (show: (overview: Overview, metric: Metric, change: Change | undefined) => string) => (run: Run) => {
    if (!run.overview) return "";
    const metric = primary(run.overview);
    return show(run.overview, metric, run.overview.global.find((whole) => whole.metric === metric.key));
  };
  return (
    <Table
      label="Runs, the newest first"
      class="runs"
      keyOf={({ name }) => name}
      groups={[{ rows: runs }]}
      columns={[
        {
          head: "Run",
          kind: "name",
          cell: (run) => (
            <>
              <a href={hrefOf(run)}>{run.name}</a>
              {run.error && <p role="alert">This run can't be read: {run.error}</p>}
            </>
          ),
        },
        { head: "Made", cell: of(({ created_at, command }) => `${command}, ${format.date(created_at)}`) },
        { head: "Examples", kind: "number", cell: of(({ dataset }) => format.count(dataset.n)) },
        {
          head: "Over all examples, 95% interval",
          kind: "number",
          cell: of((_, metric, change) => (change ? `${metric.name} ${format.estimate(metric, change.after)}` : "")),
        },
        {
          head: "Change",
          kind: "number",
          cell: of((_, metric, change) => (change?.before && change.delta?.value != null ? format.difference(metric, change.delta.value) : "")),
        },
        {
          head: "Slices worse",
          kind: "number",
          cell: of((overview, metric) => {
            const tests = testsOf(overview, metric);
            return tests ? `${format.count(tests.degraded)} of ${format.count(tests.tested)}` : "";
          }),
        },
        {
          head: "Result",
          cell: (run) => {
            const { state, word } = calledOf(run);
            return <Badge state={state}>{word}</Badge>;
          },
        },
      ]}
    />
  );
}
