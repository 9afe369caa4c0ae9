// What discovery found: the groups of examples, each with the words that describe it.
import { numbersOf } from "./columns";
import { isServed } from "./extensions";
import * as format from "./format";
import { GroupMap } from "./group_map";
import { Link } from "./link";
import type { Overview } from "./model";
import { hashOf } from "./route";
import type { Columns, Detail, Found, Store } from "./store";
import { Missing } from "./missing";
import { primary } from "./verdict";
import { Embeddings, Interval, Mixture, Q, Variance } from "./words";

export function Clusters({ content, store }: { content: Overview; store: Store }) {
  const found = [...store.details.values()].filter((one): one is Detail & { found: Found } => one.found !== undefined);
  const metric = primary(content);
  const columns = store.metrics.get(metric.key);
  const known = store.discovery;
  if (!columns || !known) {
    return <Missing title="Clusters">This page has no groups of examples: slicebeam discover finds them.</Missing>;
  }
  const what = content.comparison === "baseline" ? "change between the models" : `difference in ${metric.name}`;
  return (
    <main>
      <h1 class="view" tabIndex={-1}>Clusters</h1>
      <p>
        {format.plural(known.evaluation_examples, "example")} were grouped by their <Embeddings />
        {known.encoder === "none" ? "" : ` (encoder ${known.encoder})`}: examples in a group are alike. Phrases describe a group;
        they are words that are near to it, and not a proof of what it is about.
      </p>
      <p class="legend">
        The 95% <Interval /> stands in brackets; <Q />.
      </p>
      <ol class="clusters">
        {found.map((one) => (
          <Cluster key={one.slice_id} one={one} content={content} store={store} columns={columns} />
        ))}
      </ol>
      {store.maps.map((one) => (
        <GroupMap key={one.field} map={one} store={store} columns={columns} metric={metric} />
      ))}
      {!found.length && <p>No group is described: none changed significantly.</p>}
      <section>
        <h2>How the examples were grouped</h2>
        <p>
          Each <Mixture /> divides all examples into groups. Where groups explain more of the {what} than groups drawn by
          chance would, it depends on what the examples are about. Of each embedding's{" "}
          {format.count(known.dimensions)} numbers, the {format.count(known.kept_dimensions)} combinations that vary most were used;
          they hold {format.share(known.kept_variance)} of the <Variance />.
        </p>
        <div class="scrolled" tabIndex={0} role="region" aria-label="How the examples were grouped">
          <table>
            <thead>
              <tr>
                <th scope="col">Mixture</th>
                <th scope="col">Groups</th>
                <th scope="col">Not empty</th>
                <th scope="col">Share of the {what} that they explain</th>
                <th scope="col">By chance</th>
              </tr>
            </thead>
            <tbody>
              {known.resolutions.map((one) => (
                <tr key={one.field}>
                  <th scope="row">{one.field}</th>
                  <td>{format.count(one.components)}</td>
                  <td>{one.nonempty === undefined ? "not known" : format.count(one.nonempty)}</td>
                  <td>{one.r2 === undefined ? "not known" : `${(100 * one.r2).toFixed(2)}%`}</td>
                  <td>{one.r2_expected === undefined ? "not known" : `${(100 * one.r2_expected).toFixed(2)}%`}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        <p class="legend">
          The share of the <Variance /> of the {what} from example to example. It has no interval: next to it is the share
          expected by chance.
        </p>
      </section>
    </main>
  );
}

interface Given {
  one: Detail & { found: Found };
  content: Overview;
  store: Store;
  columns: Columns;
}

function Cluster({ one, content, store, columns }: Given) {
  const row = store.rowOf(one.slice_id);
  const metric = primary(content);
  if (row === undefined) return null;
  const numbers = numbersOf(columns, metric, row);
  const { found } = one;
  const typical = one.examples?.find((example) => example.role === "representative") ?? one.examples?.[0];
  const overlaps = [...found.overlaps].sort((a, b) => b.jaccard - a.jaccard).filter((other) => other.jaccard > 0);
  return (
    <li>
      <h2>
        <Link to={hashOf("slice", one.slice_id)}>{one.name}</Link>
      </h2>
      {found.phrases.length > 0 ? (
        <p class="chips">
          {found.phrases.map((phrase, at) => (
            <span class="chip" key={at}>
              {phrase.text}
            </span>
          ))}
        </p>
      ) : (
        <p class="legend">No phrases describe it.</p>
      )}
      <p>
        {metric.name} {numbers.value} ({numbers.valueInterval}), delta <b>{numbers.delta}</b> ({numbers.deltaInterval}), q{" "}
        {numbers.q}; {format.plural(store.n[row] as number, "example")}
        {found.improved !== undefined &&
          `, of which ${format.count(found.improved)} got better and ${format.count(found.degraded ?? 0)} worse`}
        .{found.opposite_to_global && " It changed in the other direction than all examples."}
      </p>
      {typical ? (
        <blockquote>{typical.fields[0]?.[1]}</blockquote>
      ) : (
        <p class="legend">
          {isServed() ? "Its own view shows its examples." : "slicebeam report --examples puts a typical example here."}
        </p>
      )}
      {overlaps.length > 0 && (
        <p class="legend">
          Overlaps most with{" "}
          {overlaps.slice(0, 3).map((other, at) => {
            const there = store.rowOf(other.slice_id);
            return (
              <span key={other.slice_id}>
                {at > 0 && ", "}
                <Link to={hashOf("slice", other.slice_id)}>{there === undefined ? other.slice_id : store.nameOf(there)}</Link> (
                {format.share(other.jaccard)} of the examples of either)
              </span>
            );
          })}
        </p>
      )}
    </li>
  );
}
