// The first view: the verdict, the findings, and what a reader should know of them.
import { useEffect, useState } from "preact/hooks";

import { Bars, Conditions, Phrases, type Row } from "./bars";
import * as format from "./format";
import { allSides, isServed } from "./extensions";
import { Link } from "./link";
import { hashOf } from "./route";
import { SinceThen } from "./since";
import { Term } from "./term";
import { UpSet } from "./upset";
import type { Change, Finding, FindingModel, Metric, Overview as Content, Slice } from "./model";
import type { Sides, Store } from "./store";
import { againstText, asText, counted, counts, findingText, firstFinding, gap, held, metricOf, missText, modelText, noticeable, overall, primary, referenceOf, sliceOf, testsOf, valueInterval } from "./verdict";

const FIRST = 10;

export function Overview({ content, store }: { content: Content; store: Store | null }) {
  const metric = primary(content);
  const worst = firstFinding(content);
  return (
    <main>
      <header>
        <h1 tabIndex={-1}>{content.title}</h1>
        {content.tests.length > 0 && content.lead && <p class="verdict">{content.lead}</p>}
        {content.tests.length > 0 && <p class="verdict">{overall(content, metric)}</p>}
        <p class="verdict">{counts(content, metric) || content.summary}</p>
        <OtherDirection content={content} metric={metric} store={store} />
        {worst && (
          <section class="worst" aria-label="The worst">
            <h2>Worst</h2>
            <p class="name">
              <Link to={hashOf("slice", worst.slice_id)}>
                <Conditions slice={sliceOf(content, worst.slice_id)} id={worst.slice_id} />
              </Link>
            </p>
            <Phrases slice={sliceOf(content, worst.slice_id)} />
            <p>{findingText(content, worst)}.</p>
            <p class="legend">
              The first finding: the one that accounts for most {worstOf(content)}.
            </p>
          </section>
        )}
        <Copy content={content} />
      </header>
      {content.since && <SinceThen content={content} since={content.since} />}
      {ordered(content).map((model) => (
        <List key={`${model.metric} ${model.direction}`} content={content} model={model} />
      ))}
      {content.metrics.slice(1).map((other) => (
        <p key={other.key}>
          {overall(content, other)} {counts(content, other)}
        </p>
      ))}
      <Facts content={content} />
    </main>
  );
}

/** A way to the slices of the direction that the run did not look for, with their number. */
function OtherDirection({ content, metric, store }: { content: Content; metric: Metric; store: Store | null }) {
  const [asked, hold] = useState<Sides | null>(null);
  const tests = testsOf(content, metric);
  const isOneSided = content.alternative === "worse" || content.alternative === "better";
  const isOpen = isOneSided && content.views.includes("slices") && tests !== undefined && !tests.blind;
  useEffect(() => {
    // Without a number the way is there all the same.
    if (isOpen) void allSides.of?.(metric.key).then(hold, () => hold(null));
  }, [isOpen, metric.key]);
  if (!isOpen) return null;
  const other = content.alternative === "worse" ? "better" : "worse";
  const sides = asked ?? store?.metrics.get(metric.key)?.sides;
  const isAbove = (other === "better") === metric.higher_is_better;
  const number = sides && sides[isAbove ? 1 : 0];
  if (number === 0) return null;
  const options = new URLSearchParams({ metric: metric.key, direction: other, significant: "no", inherited: "yes", sort: "-harm" });
  return (
    <p>
      <Link to={hashOf("slices", "", options)}>
        Show the {number == null ? "slices" : format.plural(number, "slice")} whose {metric.name} is {other} than{" "}
        {content.comparison === "overall" ? "overall" : "before"}
      </Link>
      : this run did not test for it, so go by their intervals.
    </p>
  );
}

/** What the first finding has most of. */
function worstOf(content: Content): string {
  if (content.comparison === "baseline") return "of the loss since the earlier model, beyond what is expected";
  return format.isShare(primary(content)) ? "errors beyond those expected" : "of the loss beyond what is expected";
}

/** What is worse comes first, and the first metric before others. */
function ordered(content: Content): FindingModel[] {
  const place = (one: FindingModel) =>
    content.metrics.findIndex((metric) => metric.key === one.metric) * 2 +
    (one.direction === "worse" ? 0 : 1);
  return [...content.finding_models].sort((one, other) => place(one) - place(other));
}

function List({ content, model }: { content: Content; model: FindingModel }) {
  const metric = metricOf(content, model.metric);
  const found = content.findings.filter(
    (one) => one.metric === model.metric && one.direction === model.direction,
  );
  const isChange = content.comparison === "baseline";
  const title = isChange
    ? `Where ${metric.name} ${model.direction === "worse" ? "degraded" : "improved"}`
    : `Where ${metric.name} is ${model.direction}`;
  if (!found.length) {
    return (
      <section>
        <h2>{title}</h2>
        <p>{noFindings(model)}</p>
        <Worst content={content} model={model} />
        {model.direction === "worse" && <Nearest content={content} metric={metric} />}
      </section>
    );
  }
  const rows = found.map((one) => findingRow(content, one));
  return (
    <section>
      <h2>
        {title} {isChange && "more "}than <Expected />
      </h2>
      <p class="legend">
        The upright line is what is expected, the bar reaches to the value, and the whisker is the 95%{" "}
        <Term word="interval">
          Of intervals computed in this way, 95% contain the true difference. It allows for the selection of
          this slice, which makes the observed difference too large.
        </Term>{" "}
        of the difference, corrected for selecting the slice.
      </p>
      <Bars rows={rows.slice(0, FIRST)} metric={metric} isChange={isChange} />
      {rows.length > FIRST && (
        <details>
          <summary>{format.plural(rows.length - FIRST, "more finding")}</summary>
          <Bars rows={rows.slice(FIRST)} metric={metric} isChange={isChange} />
        </details>
      )}
      {rows.length > 1 && (
        <details>
          <summary>Which findings hold the same examples</summary>
          <UpSet content={content} model={model} />
        </details>
      )}
    </section>
  );
}

function noFindings(model: FindingModel): string {
  if (model.reason) return `There are no findings: ${model.reason}.`;
  if (model.candidates) {
    return `No finding: of ${format.plural(model.candidates, `significantly ${model.direction} slice`)} none stands out.`;
  }
  return `No slice is significantly ${model.direction}.`;
}

function Worst({ content, model }: { content: Content; model: FindingModel }) {
  const metric = metricOf(content, model.metric);
  const rows: Row[] = [];
  const isWorse = model.direction === "worse";
  for (const id of content.worst[model.metric] ?? []) {
    const slice = sliceOf(content, id);
    const change = slice?.changes.find((one) => one.metric === model.metric);
    if (!slice || !change || (change.direction === "degraded") !== isWorse) continue;
    const row = changeRow(rows.length + 1, slice, change, isWorse, againstText(metric, change));
    if (row) rows.push(row);
  }
  if (!rows.length) return null;
  return (
    <>
      <p class="legend">
        The slices that are most certainly {model.direction}. The upright line is what each is compared with.
      </p>
      <Bars rows={rows} metric={metric} isChange={false} />
    </>
  );
}

/** An end of an interval of differences, as a value. */
function endAt(expected: number, difference?: number | null): number | null {
  return difference == null ? null : expected + difference;
}

/** A slice beside what it is compared with; nothing where either value is undefined. */
function changeRow(rank: number, slice: Slice, change: Change, isWorse: boolean, text: string): Row | undefined {
  const expected = referenceOf(change);
  const { value } = change.after;
  if (value == null || expected == null) return undefined;
  const lo = endAt(expected, change.delta?.lo);
  const hi = endAt(expected, change.delta?.hi);
  return { rank, id: slice.slice_id, slice, value, expected, lo, hi, isWorse, text };
}

/** What a run that finds nothing worse can say: the slices that came nearest, and what it would have noticed. */
function Nearest({ content, metric }: { content: Content; metric: Metric }) {
  const misses = testsOf(content, metric)?.nearest ?? [];
  const rows = misses.flatMap(({ slice_id, name, change }, at) => {
    const slice = { slice_id, name, conditions: [], phrases: [], share: 0, n: change.n, changes: [change] };
    return changeRow(at + 1, slice, change, true, missText(metric, change)) ?? [];
  });
  const falls = noticeable(content, metric);
  if (!rows.length && !falls) return null;
  return (
    <div class="misses">
      {rows.length > 0 && (
        <>
          <p class="legend">
            These slices came nearest to significantly worse. The upright line is what each is compared with.
          </p>
          <Bars rows={rows} metric={metric} isChange={false} />
        </>
      )}
      {falls && <p class="legend">{falls}</p>}
    </div>
  );
}

function findingRow(content: Content, one: Finding): Row {
  const metric = metricOf(content, one.metric);
  const shown = content.comparison === "baseline" ? format.difference : format.value;
  return {
    rank: one.rank,
    id: one.slice_id,
    slice: sliceOf(content, one.slice_id),
    value: one.value,
    expected: one.expected,
    lo: endAt(one.expected, one.corrected.low),
    hi: endAt(one.expected, one.corrected.high),
    isWorse: one.direction === "worse",
    text: `${valueInterval(content, one)}, expected ${shown(metric, one.expected)}: ${gap(metric, one)}; ${counted(metric, one.n)}${held(content, metric, one)}`,
  };
}

function Facts({ content }: { content: Content }) {
  return (
    <>
      <section>
        <h2>What was compared</h2>
        <dl>
          <dt>Data</dt>
          <dd>
            {content.dataset.name}, {format.plural(content.dataset.n, "example")}
          </dd>
          {content.dataset.label && (
            <>
              <dt>Label</dt>
              <dd>{content.dataset.label}</dd>
            </>
          )}
          <dt>{content.models.length > 1 ? "Models" : "Model"}</dt>
          <dd>
            {content.models
              .map((one) => modelText(content, one)).join(", ")}
          </dd>
          <dt>Made</dt>
          <dd>
            {format.date(content.created_at)} by slicebeam {content.tool_version}, {content.command}
            {content.revision > 0 && `, revision ${content.revision}`}
          </dd>
        </dl>
      </section>
      {content.notes.length > 0 && (
        <section>
          <h2>Warnings and notes</h2>
          <ul>
            {content.notes.map((one, at) => (
              <li key={at}>{one}</li>
            ))}
          </ul>
        </section>
      )}
      {content.left_out.length > 0 && (
        <section>
          <h2>Not in this page</h2>
          <ul>
            {content.left_out.map((one, at) => (
              <li key={at}>{one}</li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

function Expected() {
  return (
    <Term word="expected">
      The value expected from the findings above it; for the first, the value over all examples.
    </Term>
  );
}

function Copy({ content }: { content: Content }) {
  const [came, say] = useState("");
  const [isShown, show] = useState(false);
  const text = asText(content);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied.");
    } catch {
      // A page in a frame or a mail program may have no clipboard.
      show(true);
      say("This page can't write to the clipboard: copy the text below.");
    }
  };
  return (
    <div class="copy">
      <button type="button" onClick={() => void copy()}>
        Copy as text
      </button>
      <span role="status">{came}</span>
      {isServed() && (
        <span class="legend">
          This address works in this browser only: <code>slicebeam report</code> writes a page that can be sent.
        </span>
      )}
      {isShown && <textarea readOnly aria-label="The overview as text" rows={12} value={text} />}
    </div>
  );
}
