// One slice: all that is known of it, and the slices around it.
import { numbersOf } from "./columns";
import { sliceSections } from "./extensions";
import * as format from "./format";
import { Link } from "./link";
import type { Change, Metric, Overview } from "./model";
import { hashOf } from "./route";
import { Missing } from "./missing";
import { Short } from "./short";
import { Findings } from "./shared_examples";
import { SliceSince } from "./since";
import type { Columns, Detail, Store } from "./store";
import { gap, movement, primary } from "./verdict";
import { Delta, Impact, Interval, P, Q, Refines } from "./words";
import type { ComponentChildren } from "preact";

const MOST_CHILDREN = 20;

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
  const conditions = store.conditionsOf(row);
  return (
    <main>
      <h1 class="view" tabIndex={-1}>{store.nameOf(row)}</h1>
      {conditions.length > 0 && conditions.join(" & ") !== store.nameOf(row) && (
        <p>
          <span class="chips">
            {conditions.map((one) => (
              <span class="chip" key={one}>
                {one}
              </span>
            ))}
          </span>
        </p>
      )}
      {detail?.definition && <p>Defined as {detail.definition}.</p>}
      {detail?.description && <p>{detail.description}</p>}
      {detail?.notes.map((one, at) => (
        <p key={at} class="note">
          Note: {one}
        </p>
      ))}
      <p>
        {format.plural(store.n[row] as number, "example")} of {format.count(content.dataset.n)}.{" "}
        {store.lengths[row] ? <Link to={hashOf("lattice", id)}>Show it among its neighbours</Link> : null}
      </p>
      {content.metrics.map((metric) => (
        <Measured key={metric.key} content={content} store={store} row={row} metric={metric} detail={detail} />
      ))}
      <SliceSince content={content} store={store} id={id} />
      {detail && detail.same_examples_as.length > 0 && (
        <section>
          <h2>The same examples</h2>
          <p>These longer predicates have the same examples:</p>
          <ul>
            {detail.same_examples_as.map((one) => (
              <li key={one}>{one}</li>
            ))}
          </ul>
        </section>
      )}
      <Examples detail={detail} />
      <Attribution detail={detail} />
      <Findings content={content} store={store} row={row} />
      <Around content={content} store={store} row={row} />
      {sliceSections.map(({ component: Section }, at) => (
        <Section key={at} content={content} store={store} row={row} id={id} />
      ))}
      <p class="legend">slice_id {id}</p>
    </main>
  );
}

function Measured(given: { content: Overview; store: Store; row: number; metric: Metric; detail: Detail | undefined }) {
  const { content, store, row, metric, detail } = given;
  const columns = store.metrics.get(metric.key);
  if (!columns) return null;
  const numbers = numbersOf(columns, metric, row);
  const change = detail?.changes.find((one) => one.metric === metric.key);
  const at = (name: keyof Columns["numbers"]) => columns.numbers[name][row] as number;
  const hasBefore = content.comparison !== "overall";
  const test = columns.texts.test[columns.codes.test[row] as number];
  const reason = columns.texts.reason[columns.codes.reason[row] as number];
  const parent = columns.parent[row] as number;
  const delta = at("delta");
  const finding = content.findings.find((one) => one.metric === metric.key && one.slice_id === store.ids[row]);
  const isWorse = delta > 0 !== metric.higher_is_better;
  const verdict = Number.isNaN(delta)
    ? "The difference is undefined."
    : Number.isNaN(at("p_value"))
      ? `Not tested${reason ? `: ${reason}` : ""}.`
      : `${columns.significant[row] ? "Significantly" : "Not significantly"} ${isWorse ? "worse" : "better"} than ${hasBefore ? "before" : "overall"}.`;
  return (
    <section>
      <h2>{metric.name}</h2>
      <p class="verdict">{verdict}</p>
      <dl>
        <Fact name={hasBefore ? "Now" : "Value"}>
          {numbers.value} <small>{numbers.valueInterval && `(${numbers.valueInterval})`}</small>
        </Fact>
        <Fact name={hasBefore ? "Before" : "Overall"}>
          {numbers.reference} <small>({referenceInterval(content, metric, change)})</small>
        </Fact>
        {!hasBefore && (
          <Fact name="Other examples">
            {Number.isNaN(at("complement")) ? "undefined" : format.value(metric, at("complement"))}{" "}
            <small>({complementError(metric, at("complement_error"))})</small>
          </Fact>
        )}
        <Fact name={<Delta />}>
          {numbers.delta} <small>{numbers.deltaInterval && `(${numbers.deltaInterval})`}</small>, 95% <Interval />
        </Fact>
        {change?.inconsistency != null && <Fact name="Examples">{movement(metric, change)}</Fact>}
        <Fact name={<Impact />}>
          {Number.isNaN(delta) ? "undefined" : ((store.n[row] as number) * delta).toPrecision(3).replace("-", "\u2212")}{" "}
          <small>(interval: that of delta times n)</small>
        </Fact>
        <Fact name={<P />}>
          {reason ? `none: ${reason}` : format.probability(at("p_value"))} <small>(a probability of the test has no interval)</small>
        </Fact>
        <Fact name={<Q />}>{reason ? "none" : format.probability(at("q_value"))}</Fact>
        <Fact name="Test">{test ?? `none: ${reason ?? "not recorded"}`}</Fact>
        {change?.inputs && (
          <Fact name="Computed from">
            {Object.entries(change.inputs)
              .map(([name, number]) => `${name} = ${shortNumber(number)}`)
              .join(", ")}
            {"K" in change.inputs && " (of the n examples of the slice that the metric looks at it counts x, of the N in all the data K)"}
          </Fact>
        )}
        {numbers.label && (
          <Fact name="Against slices above">
            {numbers.label === "refines" ? <Refines /> : numbers.label}
            {parent >= 0 && (
              <>
                {" "}
                <Link to={hashOf("slice", store.ids[parent])}>
                  <Short text={store.nameOf(parent)} />
                </Link>
              </>
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
    </section>
  );
}

function Fact({ name, children }: { name: ComponentChildren; children: ComponentChildren }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}

function shortNumber(number: number): string {
  return Number.isInteger(number) ? format.count(number) : Number(number.toPrecision(5)).toString();
}

function referenceInterval(content: Overview, metric: Metric, change: Change | undefined): string {
  if (content.comparison !== "overall") {
    const before = change?.before;
    return before?.lo == null
      ? "its interval is in changelist.json for reported slices only; that of the delta counts"
      : format.interval(metric, before.lo, before.hi);
  }
  const whole = content.global.find((one) => one.metric === metric.key)?.after;
  return format.interval(metric, whole?.lo, whole?.hi);
}

function complementError(metric: Metric, error: number): string {
  if (Number.isNaN(error)) return "no interval is known";
  if (error === 0) return "all of them were counted; the comparison has the interval";
  return `error ${format.difference(metric, error)}`;
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

function Examples({ detail }: { detail: Detail | undefined }) {
  if (!detail?.examples?.length) return null;
  return (
    <section>
      <h2>Examples</h2>
      <ol class="examples">
        {detail.examples.map((one, at) => (
          <li key={at}>
            <b>{one.role}</b> {one.id !== undefined && <small>{String(one.id)}</small>}
            <dl>
              {one.fields.map(([name, value]) => (
                <Fact key={name} name={name}>
                  {value}
                </Fact>
              ))}
            </dl>
          </li>
        ))}
      </ol>
    </section>
  );
}

function Attribution({ detail }: { detail: Detail | undefined }) {
  const words = detail?.attribution;
  if (!words) return null;
  const shown = (one: { value?: number; lo?: number; hi?: number }) =>
    one.value == null
      ? "not known yet"
      : `${format.share(one.value)} (${one.lo == null || one.hi == null ? "no interval is known" : `${format.share(one.lo)} to ${format.share(one.hi)}`})`;
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

function Around({ content, store, row }: { content: Overview; store: Store; row: number }) {
  const parents = store.parents(row);
  const children = store.children(row);
  const metric = primary(content);
  const columns = store.metrics.get(metric.key);
  if (!columns || (!parents.length && !children.length)) return null;
  const shown = sharpest(columns, metric, children).slice(0, MOST_CHILDREN);
  return (
    <>
      {parents.length > 0 && (
        <Neighbours
          title="With one condition less"
          head="Without"
          content={content}
          store={store}
          rows={parents}
        />
      )}
      {shown.length > 0 && (
        <Neighbours
          title={`With one condition more${children.length > shown.length ? `: the ${shown.length} worst of ${format.count(children.length)}` : ""}`}
          head="And"
          content={content}
          store={store}
          rows={shown}
        />
      )}
    </>
  );
}

/** The slices in which the metric is worse come first. */
export function sharpest<T extends { row: number }>(columns: Columns, metric: Metric, rows: T[]): T[] {
  const sign = metric.higher_is_better ? 1 : -1;
  const delta = (one: T) => {
    const held = columns.numbers.delta[one.row] as number;
    return Number.isNaN(held) ? Infinity : sign * held;
  };
  return [...rows].sort((one, other) => delta(one) - delta(other) || one.row - other.row);
}

function Neighbours(given: {
  title: string;
  head: string;
  content: Overview;
  store: Store;
  rows: { row: number | undefined; code: number }[];
}) {
  const { content, store } = given;
  const metric = primary(content);
  const columns = store.metrics.get(metric.key) as Columns;
  return (
    <section>
      <h2>{given.title}</h2>
      <div class="scrolled" tabIndex={0} role="region" aria-label={given.title}>
        <table>
          <thead>
            <tr>
              <th scope="col">{given.head}</th>
              <th scope="col">n</th>
              <th scope="col">{metric.name}</th>
              <th scope="col">Delta</th>
              <th scope="col">q</th>
            </tr>
          </thead>
          <tbody>
            {given.rows.map(({ row, code }) => {
              const text = store.conditions[code]?.text ?? "";
              if (row === undefined) {
                return (
                  <tr key={code}>
                    <th scope="row">
                      <Short text={text} />
                    </th>
                    <td colSpan={4}>not in this page</td>
                  </tr>
                );
              }
              const numbers = numbersOf(columns, metric, row);
              return (
                <tr key={code}>
                  <th scope="row">
                    <Link to={hashOf("slice", store.ids[row])}>
                      <Short text={text} />
                    </Link>
                  </th>
                  <td>{format.count(store.n[row] as number)}</td>
                  <td>
                    {numbers.value} ({numbers.valueInterval})
                  </td>
                  <td>
                    {numbers.delta} ({numbers.deltaInterval})
                  </td>
                  <td>{numbers.q}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}
