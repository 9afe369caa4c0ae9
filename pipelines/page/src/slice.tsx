// One slice: how it differs from what is expected, what its mistakes are, and what each condition does.
import type { ComponentChildren } from "preact";

import { Chips } from "./chips";
import { numbersOf } from "./columns";
import { Confusion } from "./confusion";
import { sliceSections } from "./extensions";
import * as format from "./format";
import { Link } from "./link";
import { AxisHead, axisOf, Badge, Mark, type Measured, type Tone } from "./marks";
import { Missing } from "./missing";
import type { Change, Metric, Overview } from "./model";
import { hashOf } from "./route";
import { Findings } from "./shared_examples";
import { Short } from "./short";
import { SliceSince } from "./since";
import { type Columns, type Detail, isWorse, type Store } from "./store";
import { Table } from "./table";
import { gap, movement, primary } from "./verdict";
import { Delta, Impact, Interval, P, Q, Refines } from "./words";

const MOST_CHILDREN = 10;

interface Given {
  content: Overview;
  store: Store;
  row: number;
}

export function SliceView({ content, store, id }: { content: Overview; store: Store; id: string }) {
  const row = store.rowOf(id);
  if (!id) return <Missing title="Slice">The address names no slice.</Missing>;
  if (row === undefined) {
    return (
      <Missing title={`Slice ${id}`}>
        This page does not contain the slice: it is in slices.parquet, if the run tested it.
      </Missing>
    );
  }
  const detail = store.details.get(id);
  const given = { content, store, row };
  return (
    <main>
      <Neighbours content={content} id={id} />
      <Verdict {...given} detail={detail} />
      <div class={detail?.confusion ? "two" : ""}>
        <div>
          {content.metrics.map((metric) => (
            <Elsewhere key={metric.key} {...given} metric={metric} detail={detail} />
          ))}
        </div>
        {detail?.confusion && <Confusion confusion={detail.confusion} />}
      </div>
      <Conditions {...given} />
      <Examples detail={detail} />
      {sliceSections.map(({ component: Section }, at) => (
        <Section key={at} {...given} id={id} />
      ))}
      <SliceSince content={content} store={store} id={id} />
      <Attribution detail={detail} />
      <div class="closed">
        {content.metrics.map((metric) => (
          <Statistics key={metric.key} {...given} metric={metric} detail={detail} />
        ))}
        <Findings content={content} store={store} row={row} />
        {detail && detail.same_examples_as.length > 0 && (
          <details>
            <summary>Longer predicates with the same examples</summary>
            <ul>
              {detail.same_examples_as.map((predicate) => (
                <li key={predicate}>{predicate}</li>
              ))}
            </ul>
          </details>
        )}
      </div>
      <p class="note">slice_id {id}</p>
    </main>
  );
}

/** The finding before and after this one. */
function Neighbours({ content, id }: { content: Overview; id: string }) {
  const finding = content.findings.find((other) => other.slice_id === id);
  if (!finding) return null;
  const list = content.findings.filter(({ metric, direction }) => metric === finding.metric && direction === finding.direction);
  const [before, after] = [-1, 1].map((step) => list.find(({ rank }) => rank === finding.rank + step));
  return (
    <p class="neighbours">
      <span>
        <Link to={hashOf("overview")}>Overview</Link> Group {finding.rank} of {list.length}
      </span>
      <span>
        {before && <Link to={hashOf("slice", before.slice_id)}>Previous</Link>} {after && <Link to={hashOf("slice", after.slice_id)}>Next</Link>}
      </span>
    </p>
  );
}

function Verdict({ content, store, row, detail }: Given & { detail: Detail | undefined }) {
  const metric = primary(content);
  const columns = store.metrics.get(metric.key);
  const id = store.ids[row] as string;
  const finding = content.findings.find((other) => other.slice_id === id);
  const shownMetric = content.metrics.find(({ key }) => key === finding?.metric) ?? metric;
  const own = store.metrics.get(shownMetric.key) ?? columns;
  if (!own) return <h1 tabIndex={-1}>{store.nameOf(row)}</h1>;
  const numbers = numbersOf(own, shownMetric, row);
  const number = (name: keyof Columns["numbers"]) => own.numbers[name][row] as number;
  const [delta, value] = [number("delta"), number("value")];
  const isChange = content.comparison !== "overall";
  const isSignificant = Boolean(own.significant[row]);
  const tone: Tone = delta === 0 || Number.isNaN(delta) ? "none" : isWorse(shownMetric, delta) ? "worse" : "better";
  const shown = format.value(shownMetric, value);
  const when = { overall: "overall", baseline: "before", earlier: "then" }[content.comparison];
  const against = finding && !isChange ? ` where ${format.value(shownMetric, finding.expected)} is expected` : `, ${numbers.reference} ${when}`;
  const title = Number.isNaN(value) ? `${shownMetric.name} is undefined` : `${shown}${against}`;
  const word = Number.isNaN(number("p_value"))
    ? "Not tested"
    : `${isSignificant ? "" : "Not significantly "}${tone === "none" ? "no difference" : tone}`.replace(/^./, (letter) => letter.toUpperCase());
  return (
    <div class="verdict">
      <Chips conditions={store.chipsOf(row)} name={store.nameOf(row)} />
      <div class="verdict-line">
        <Badge state={isSignificant ? tone : "none"}>{word}</Badge>
        <h1 tabIndex={-1}>{title}</h1>
      </div>
      {detail?.definition && <p>Defined as {detail.definition}.</p>}
      {detail?.description && <p>{detail.description}</p>}
      {detail?.notes.map((note, at) => (
        <p key={at} class="note">
          Note: {note}
        </p>
      ))}
      <dl class="slice-facts">
        <Big name={finding ? "Difference from what is expected, corrected" : "Difference"}>
          {finding ? format.difference(shownMetric, finding.corrected.difference) : numbers.delta}{" "}
          <small>
            {finding ? format.differences(shownMetric, finding.corrected.low, finding.corrected.high) : numbers.deltaInterval}
          </small>
        </Big>
        <Big name="Examples">
          {format.count(store.n[row] as number)} <small>{format.share((store.n[row] as number) / content.dataset.n)} of all</small>
        </Big>
        {finding && finding.n !== store.n[row] && (
          <Big name={shownMetric.counted ?? "that the metric counts"}>{format.count(finding.n)}</Big>
        )}
      </dl>
    </div>
  );
}

function Big({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

interface Place {
  name: string;
  shown: Measured;
  n: number | undefined;
  tone: Tone;
}

/** The slice beside what is expected, the other examples and all, or then and now. */
function Elsewhere({ content, store, row, metric, detail }: Given & { metric: Metric; detail: Detail | undefined }) {
  const columns = store.metrics.get(metric.key);
  if (!columns) return null;
  const number = (name: keyof Columns["numbers"]) => {
    const held = columns.numbers[name][row] as number;
    return Number.isNaN(held) ? undefined : held;
  };
  const change = detail?.changes.find((other) => other.metric === metric.key);
  const finding = content.findings.find((other) => other.metric === metric.key && other.slice_id === store.ids[row]);
  const whole = content.global.find((other) => other.metric === metric.key);
  const hasBefore = content.comparison !== "overall";
  const delta = number("delta");
  const tone = columns.significant[row] && delta ? (isWorse(metric, delta) ? "worse" : "better") : "none";
  const n = store.n[row] as number;
  const place = (name: string, value: number | undefined, lo?: number, hi?: number, size?: number, of: Tone = "none"): Place[] =>
    value === undefined ? [] : [{ name, shown: { value, lo, hi }, n: size, tone: of }];
  const places = [
    ...place(hasBefore ? "This slice now" : "This slice", number("value"), number("value_low"), number("value_high"), n, tone),
    ...(hasBefore ? place(content.comparison === "earlier" ? "Then" : "Before", number("reference"), change?.before?.lo, change?.before?.hi) : []),
    ...(finding && content.comparison !== "baseline" ? place("Expected here", finding.expected) : []),
    ...(hasBefore ? [] : place("All other examples", number("complement"), undefined, undefined, content.dataset.n - n)),
    ...place(hasBefore ? "All examples now" : "All examples", whole?.after.value, whole?.after.lo, whole?.after.hi, content.dataset.n),
    ...(hasBefore ? place("All examples before", whole?.before?.value, whole?.before?.lo, whole?.before?.hi) : []),
  ];
  const axis = axisOf(metric, places.map(({ shown }) => shown), false);
  const isShare = format.isShare(metric);
  return (
    <section class="elsewhere">
      <h2>Here and elsewhere{content.metrics.length > 1 && `: ${metric.name}`}</h2>
      <Table
        label={`${metric.name}, here and elsewhere`}
        keyOf={({ name }) => name}
        groups={[{ rows: places }]}
        columns={[
          { head: "Where", kind: "name", cell: ({ name }) => (name.startsWith("This") ? <b>{name}</b> : name) },
          { head: `${metric.name}${isShare ? ", %" : ""}`, kind: "number", cell: ({ shown }) => format.value(metric, shown.value).replace("%", "") },
          {
            head: <AxisHead axis={axis} title="95% interval" />,
            kind: "plot",
            cell: ({ shown, tone: of, name }) => (
              <Mark axis={axis} shown={shown} tone={of} label={`${name}: ${format.value(metric, shown.value)}, ${format.interval(metric, shown.lo, shown.hi)}`} />
            ),
          },
          { head: "Examples", kind: "number", cell: ({ n: size }) => (size === undefined ? "–" : format.count(size)) },
        ]}
      />
      {metric.counted && (
        <p class="note">
          All examples; {metric.name} is of those {metric.counted.replace(/^examples /, "")}.
        </p>
      )}
    </section>
  );
}

interface Step {
  word: string;
  code: number;
  row: number | undefined;
}

/** The slices without each of the conditions, then with one more. */
function Conditions({ content, store, row }: Given) {
  const metric = primary(content);
  const columns = store.metrics.get(metric.key);
  const parents = store.parents(row);
  const children = store.children(row);
  if (!columns || (!parents.length && !children.length)) return null;
  const shown = sharpest(columns, metric, children).slice(0, MOST_CHILDREN);
  const number = (name: keyof Columns["numbers"], at: number | undefined) =>
    at === undefined ? NaN : (columns.numbers[name][at] as number);
  const value = number("value", row);
  const steps = (word: string, list: { row: number | undefined; code: number }[]): Step[] => list.map((step) => ({ word, ...step }));
  const groups = [
    { title: parents.length > 0 && "Without one condition", rows: steps("without", parents) },
    {
      title:
        children.length > shown.length
          ? `With one more condition: the ${shown.length} worst of ${format.count(children.length)}`
          : children.length > 0 && "With one more condition",
      rows: steps("and", shown),
    },
  ].filter(({ rows }) => rows.length > 0);
  const measured = (at: number | undefined): Measured => ({ value: number("value", at), lo: number("value_low", at), hi: number("value_high", at) });
  const axis = axisOf(metric, [...parents, ...shown].map((step) => measured(step.row)), false, [value]);
  const bare = (at: number) => (Number.isNaN(at) ? "–" : format.value(metric, at).replace("%", ""));
  return (
    <section class="conditions">
      <h2>What each condition does</h2>
      <p class="note">Dashed: this slice. A condition matters if {metric.name} changes without it; the differences were not tested.</p>
      <Table<Step>
        label="What each condition does"
        keyOf={({ word, code }) => `${word} ${code}`}
        groups={groups}
        columns={[
          {
            head: "Slice",
            kind: "name",
            cell: ({ word, code, row: at }) => {
              const chips = <Chips conditions={[store.chipOf(code)]} />;
              return (
                <>
                  <span class="label">{word}</span> {at === undefined ? <>{chips} not in this page</> : <Link to={hashOf("slice", store.ids[at])}>{chips}</Link>}
                </>
              );
            },
          },
          { head: `${metric.name}${format.isShare(metric) ? ", %" : ""}`, kind: "number", cell: (step) => bare(number("value", step.row)) },
          {
            head: <AxisHead axis={axis} title="95% interval" />,
            kind: "plot",
            cell: (step) => (
              <Mark
                axis={axis}
                shown={measured(step.row)}
                tone="none"
                guide={Number.isNaN(value) ? undefined : value}
                label={bare(number("value", step.row))}
              />
            ),
          },
          {
            head: "Against this",
            kind: "number",
            cell: (step) => {
              const edge = number("value", step.row) - value;
              return <b>{Number.isNaN(edge) ? "–" : format.difference(metric, edge).replace(" points", "")}</b>;
            },
          },
          { head: "Examples", kind: "number", cell: ({ row: at }) => (at === undefined ? "–" : format.count(store.n[at] as number)) },
        ]}
      />
      {children.length > shown.length && (
        <p class="note">
          <Link to={hashOf("slices", "", withMore(store, row))}>All {format.count(children.length)} with one more condition</Link>
        </p>
      )}
    </section>
  );
}

/** The filter of the slices with one condition more. */
function withMore(store: Store, row: number): URLSearchParams {
  const options = new URLSearchParams({ significant: "no", inherited: "yes", level: String((store.lengths[row] as number) + 1) });
  for (const code of store.codesOf(row)) options.append("with", store.keyOf(code));
  return options;
}

/** The slices in which the metric is worse come first. */
function sharpest<T extends { row: number }>(columns: Columns, metric: Metric, rows: T[]): T[] {
  const sign = metric.higher_is_better ? 1 : -1;
  const delta = ({ row }: T) => {
    const held = columns.numbers.delta[row] as number;
    return Number.isNaN(held) ? Infinity : sign * held;
  };
  return [...rows].sort((a, b) => delta(a) - delta(b) || a.row - b.row);
}

function Examples({ detail }: { detail: Detail | undefined }) {
  const examples = detail?.examples ?? [];
  const names = [...new Set(examples.flatMap(({ fields }) => fields.map(([name]) => name)))];
  if (!examples.length) return null;
  return (
    <section class="examples">
      <h2>Examples</h2>
      <div class="scrolled" tabIndex={0} role="region" aria-label="Examples of the slice">
        <Table
          label="Examples"
          class="plain"
          keyOf={({ role, id, fields }) => JSON.stringify([role, id, fields])}
          groups={[{ rows: examples }]}
          columns={[
            { head: "What", kind: "name", cell: ({ role }) => role },
            examples.some(({ id }) => id !== undefined) && { head: "Id", cell: ({ id }) => String(id ?? "") },
            ...names.map((name) => ({
              head: name,
              cell: ({ fields }: (typeof examples)[number]) => fields.find(([field]) => field === name)?.[1] ?? "",
            })),
          ]}
        />
      </div>
    </section>
  );
}

function Statistics({ content, store, row, metric, detail }: Given & { metric: Metric; detail: Detail | undefined }) {
  const columns = store.metrics.get(metric.key);
  if (!columns) return null;
  const numbers = numbersOf(columns, metric, row);
  const change = detail?.changes.find((other) => other.metric === metric.key);
  const at = (name: keyof Columns["numbers"]) => columns.numbers[name][row] as number;
  const test = columns.texts.test[columns.codes.test[row] as number];
  const reason = columns.texts.reason[columns.codes.reason[row] as number];
  const parent = columns.parent[row] as number;
  const finding = content.findings.find((other) => other.metric === metric.key && other.slice_id === store.ids[row]);
  const impact = (store.n[row] as number) * at("delta");
  return (
    <details>
      <summary>Statistics{content.metrics.length > 1 && `: ${metric.name}`}</summary>
      <dl>
        <Fact name={content.comparison === "overall" ? "Value" : "Now"}>
          {numbers.value} {numbers.valueInterval && `(${numbers.valueInterval})`}
        </Fact>
        <Fact name={content.comparison === "overall" ? "Overall" : "Before"}>{numbers.reference}</Fact>
        <Fact name={<Delta />}>
          {numbers.delta} {numbers.deltaInterval && `(${numbers.deltaInterval})`}, 95% <Interval />
        </Fact>
        {change?.inconsistency != null && <Fact name="Examples">{movement(metric, change)}</Fact>}
        <Fact name={<Impact />}>{Number.isNaN(impact) ? "undefined" : format.count(Number(impact.toPrecision(3))).replace("-", "\u2212")}</Fact>
        <Fact name={<P />}>{reason ? `none: ${reason}` : format.probability(at("p_value"))}</Fact>
        <Fact name={<Q />}>{reason ? "none" : format.probability(at("q_value"))}</Fact>
        <Fact name="Test">{test ?? `none: ${reason ?? "not recorded"}`}</Fact>
        {change?.inputs && <Fact name="Its numbers">{inputsText(change)}</Fact>}
        {numbers.label && (
          <Fact name="Against slices above">
            {numbers.label === "refines" ? <Refines /> : numbers.label}{" "}
            {parent >= 0 && (
              <Link to={hashOf("slice", store.ids[parent])}>
                <Short text={store.nameOf(parent)} />
              </Link>
            )}
          </Fact>
        )}
        {finding && (
          <Fact name="Finding">
            number {finding.rank}: {gap(metric, finding)}, from what is expected
          </Fact>
        )}
      </dl>
      <Explained store={store} columns={columns} row={row} />
    </details>
  );
}

function inputsText({ inputs }: Change): string {
  const short = (number: number) => (Number.isInteger(number) ? format.count(number) : Number(number.toPrecision(5)).toString());
  return Object.entries(inputs ?? {})
    .map(([name, number]) => `${name} = ${short(number)}`)
    .join(", ");
}

function Fact({ name, children }: { name: ComponentChildren; children: ComponentChildren }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}

function Explained({ store, columns, row }: { store: Store; columns: Columns; row: number }) {
  let explained = 0;
  for (const parent of columns.parent) if (parent === row) explained++;
  if (!explained) return null;
  const options = new URLSearchParams({ under: store.ids[row] as string, inherited: "yes" });
  return (
    <p>
      <Link to={hashOf("slices", "", options)}>{format.plural(explained, "slice")} that it is the best explanation of</Link>
    </p>
  );
}

function Attribution({ detail }: { detail: Detail | undefined }) {
  const words = detail?.attribution;
  if (!words) return null;
  const shown = (estimate: { value?: number; lo?: number; hi?: number }) =>
    estimate.value == null
      ? "not known yet"
      : `${format.share(estimate.value)} (${estimate.lo == null || estimate.hi == null ? "no interval is known" : `${format.share(estimate.lo)} to ${format.share(estimate.hi)}`})`;
  return (
    <section>
      <h2>Is it "{words.text}"?</h2>
      <dl>
        <Fact name="State">{words.state}</Fact>
        <Fact name="Precision">{shown(words.precision)}</Fact>
        <Fact name="Recall">{shown(words.recall)}</Fact>
        <Fact name="Missed outside">{shown(words.missed)}</Fact>
      </dl>
    </section>
  );
}
