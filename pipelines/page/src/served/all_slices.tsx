// All tested slices: the program that serves the page filters and sorts them, and sends what is in sight.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import type { Chip } from "../chips";
import { textsOf } from "../columns";
import { download } from "../csv";
import type { FacetCounts } from "../facets";
import { type Filter, filterOf, wordsOf } from "../filter";
import { FilteredSlices } from "../filtered_slices";
import type { Choice } from "../filters";
import * as format from "../format";
import { views, type ViewGiven } from "../extensions";
import { Link } from "../link";
import { axisOf } from "../marks";
import type { Metric, Overview } from "../model";
import { hashOf } from "../route";
import { Slices } from "../slices";
import { Row, type Shown } from "../slice_table";
import type { Density, NumberName, Store } from "../store";
import { metricOf, primary, testsOf } from "../verdict";
import { get, post, postForText, Refusal } from "./api";
import { useIndex, Waiting } from "./index_status";
import { NewSlice } from "./new_slice";

type Held = Record<NumberName, number | null> & {
  slice_id: string;
  name: string;
  chips: Chip[];
  n: number;
  significant: boolean;
  label: string | null;
  reason: string | null;
  finding: number;
};

interface Answer {
  found: number;
  shown: number;
  rows: Held[];
}

/** How many rows wider filters would find. */
interface Beyond {
  inherited: number;
  all: number;
  facets: FacetCounts;
}

interface Totals {
  slices: number;
  significant: number;
  density: Partial<Density>;
}

interface Known {
  conditions: Choice[];
  totals: Record<string, Totals>;
}

const WINDOW = 100;
const TAB = Array.from(crypto.getRandomValues(new Uint32Array(4)), (one) => one.toString(16)).join("");
// What is typed is asked for when the reader pauses.
const PAUSE = 120;

function AllSlices({ content, store, options }: ViewGiven) {
  const status = useIndex();
  const [known, hold] = useState<Known | null>(null);
  const [failed, say] = useState("");
  const isReady = status?.state === "ready";
  useEffect(() => {
    if (!isReady) return;
    Promise.all([get<Known["conditions"]>("conditions"), get<Known["totals"]>("totals")]).then(
      ([conditions, totals]) => hold({ conditions, totals }),
      (error: unknown) => say(String(error)),
    );
  }, [isReady]);
  const made = <HandMade content={content} store={store} text={options.get("text") ?? ""} />;
  if (status?.state === "failed") {
    // What the document lists is here all the same.
    return (
      <>
        <aside aria-label="All tested slices" class="wide">
          <p role="alert">{status.error} Shown are the slices of the document.</p>
        </aside>
        {made}
        <Slices content={content} store={store} options={options} />
      </>
    );
  }
  if (failed) return <Waiting title="Slices" status={{ state: "failed", error: failed }} />;
  if (!known) return <Waiting title="Slices" status={status} />;
  const metric = metricOf(content, options.get("metric") ?? primary(content).key);
  const totals = known.totals[metric.key];
  if (!totals) return null;
  return (
    <>
      {made}
      <Chosen key={metric.key} {...{ content, store, known, totals, metric }} query={options.toString()} />
    </>
  );
}

// What a person described; the index has only what the run tested.
const BY_HAND = ["manual", "text_filter", "classifier", "lm_filter"];

function HandMade({ content, store, text }: { content: Overview; store: Store; text: string }) {
  const words = wordsOf(text);
  const made = [...store.details.values()].filter(
    (one) => BY_HAND.includes(one.origin.method) && words.every((word) => one.words.includes(word)),
  );
  return (
    <aside aria-label="Slices made by hand" class="wide">
      <p class="answers">
        <NewSlice content={content} store={store} />
        {made.length > 0 && "Made by hand:"}
      </p>
      <ul>
        {made.map((one) => (
          <li key={one.slice_id}>
            <Link to={hashOf("slice", one.slice_id)}>{one.name}</Link>
            {store.rowOf(one.slice_id) !== undefined &&
              `, ${format.plural(store.n[store.rowOf(one.slice_id) as number] as number, "example")}`}
          </li>
        ))}
      </ul>
    </aside>
  );
}

interface ChosenGiven {
  content: Overview;
  store: Store;
  known: Known;
  totals: Totals;
  metric: Metric;
  query: string;
}

function Chosen({ content, store, known, totals, metric, query }: ChosenGiven) {
  const hasSignificant = totals.significant > 0;
  const filter = useMemo(() => filterOf(new URLSearchParams(query), hasSignificant), [query, hasSignificant]);
  const wanted = useMemo(() => asked(filter, metric), [filter, metric]);
  const { answer, beyond, rowAt, seen, failed, isLate } = useRows(wanted);
  const axis = useMemo(() => {
    const { low = 0, high = 0 } = totals.density;
    return axisOf(metric, [{ value: low }, { value: high }], true, [0]);
  }, [totals, metric]);
  const save = async () => download(await postForText("slices.csv", wanted));
  const found = answer && {
    text: `${counted(answer, totals, testsOf(content, metric)?.tested)}${isLate ? " (being looked up)" : ""}`,
    count: answer.shown,
    folded: answer.found && beyond && !filter.inherited ? beyond.inherited - answer.found : 0,
    beyond: answer.found ? 0 : (beyond?.all ?? 0),
  };
  return (
    <FilteredSlices
      content={content}
      store={store}
      conditions={known.conditions}
      metric={metric}
      filter={filter}
      query={query}
      found={found ?? undefined}
      problem={failed}
      printed="The rows in sight are printed; the CSV file has the first 100,000."
      save={() => void save()}
      density={totals.density.cells ? (totals.density as Density) : undefined}
      {...(beyond ? { facets: beyond.facets } : {})}
      axis={axis}
      rows={answer}
      seen={seen}
    >
      {(at) => {
        const held = rowAt(at);
        return held ? (
          <Row key={at} shown={shownOf(held, store, metric)} index={at + 2} axis={axis} metric={metric} />
        ) : (
          <div key={at} role="row" class="row" aria-rowindex={at + 2}>
            <div role="cell">…</div>
          </div>
        );
      }}
    </FilteredSlices>
  );
}

function counted(answer: Answer, totals: Totals, tested: number | undefined): string {
  const more =
    answer.found > answer.shown
      ? `; the first ${format.count(answer.shown)} are shown, narrow the filters for others`
      : "";
  // Slices that are too small, or without what the metric counts, are listed and have no test.
  const all =
    tested === undefined || tested === totals.slices
      ? format.plural(totals.slices, "tested slice")
      : `${format.plural(totals.slices, "slice")}, ${format.count(tested)} of them tested`;
  return `${format.count(answer.found)} of ${all}${more}`;
}

/** The filter as the program takes it: what is not bounded is left out. */
function asked(filter: Filter, metric: Metric): Record<string, unknown> {
  const { most, low, high, ...others } = filter;
  const bounded = Object.entries({ most, low, high }).filter(([, bound]) => Number.isFinite(bound));
  return {
    ...others,
    metric: metric.key,
    ...Object.fromEntries(bounded),
  };
}

function shownOf(held: Held, store: Store, metric: Metric): Shown {
  const number = (name: NumberName) => held[name] ?? NaN;
  const row = store.rowOf(held.slice_id);
  return {
    id: held.slice_id,
    name: row === undefined ? held.name : store.nameOf(row),
    chips: held.chips,
    n: held.n,
    delta: number("delta"),
    low: number("ci_low"),
    high: number("ci_high"),
    finding: held.finding,
    isSignificant: held.significant,
    numbers: textsOf(metric, number, held.reason, held.label),
  };
}

/** The rows that satisfy a filter, fetched window by window when they come in sight. */
function useRows(filter: Record<string, unknown>) {
  const [answer, hold] = useState<Answer | null>(null);
  const [beyond, widen] = useState<Beyond | null>(null);
  const [failed, say] = useState("");
  const [isLate, wait] = useState(false);
  const [, count] = useState(0);
  const held = useRef(new Map<number, Held[]>());
  const fetched = useRef(new Set<number>());
  const current = useRef<Record<string, unknown> | null>(null);
  const ask = async (offset: number, signal?: AbortSignal) =>
    post<Answer>("slices", { filter, tab: `${TAB} ${offset}`, offset, limit: WINDOW }, signal);
  useEffect(() => {
    const stop = new AbortController();
    wait(true);
    const timer = setTimeout(
      () => {
        ask(0, stop.signal).then(
          (now) => {
            if (stop.signal.aborted) return;
            current.current = filter;
            held.current = new Map([[0, now.rows]]);
            fetched.current = new Set([0]);
            say("");
            wait(false);
            widen(null);
            hold(now);
            void post<Beyond>("slices/beyond", { filter, tab: `${TAB} beyond` }, stop.signal).then(
              (wider) => !stop.signal.aborted && widen(wider),
              // The rows are there without it.
              () => undefined,
            );
          },
          (error: unknown) => {
            if (stop.signal.aborted || (error instanceof Refusal && error.status === 409)) return;
            wait(false);
            say(error instanceof Error ? error.message : String(error));
          },
        );
      },
      current.current ? PAUSE : 0,
    );
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [filter]);
  const seen = (first: number, last: number) => {
    if (current.current !== filter) return;
    for (let at = Math.floor(first / WINDOW); at * WINDOW < last; at++) {
      if (fetched.current.has(at)) continue;
      fetched.current.add(at);
      const windows = held.current;
      ask(at * WINDOW).then(
        (now) => {
          windows.set(at, now.rows);
          count((one) => one + 1);
        },
        () => fetched.current.delete(at),
      );
    }
  };
  const rowAt = (at: number) => held.current.get(Math.floor(at / WINDOW))?.[at % WINDOW];
  return { answer, beyond, rowAt, seen, failed, isLate };
}

views.push({ name: "slices", component: AllSlices });
