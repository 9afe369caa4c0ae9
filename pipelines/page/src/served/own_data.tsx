// How the update behaves on the reader's own examples: a file is checked, two columns side by side.
import { useEffect, useState } from "preact/hooks";

import { type ViewGiven, views } from "../extensions";
import * as format from "../format";
import { Link } from "../link";
import type { Estimate, Metric, Moment, Overview, SinceSlice } from "../model";
import { hashOf } from "../route";
import { metricOf } from "../verdict";
import { get, post, upload } from "./api";
import { useAsking } from "./asking";
import "./features.css";

interface Side {
  n: number;
  value: Estimate | undefined;
  delta: Estimate | undefined;
}

interface Changed {
  difference: Estimate;
  significant: boolean;
  direction: string;
}

interface Overall {
  metric: string;
  n_now: number;
  n_then: number;
  now: Estimate;
  then: Estimate;
  value_change?: Changed;
  delta_now?: Estimate;
  delta_then?: Estimate;
  delta_change?: Changed;
}

/** A slice, or all examples, in the document and in the own data. */
interface Compared {
  metric: string;
  then: Side | undefined;
  now: Side | undefined;
  change: Changed | undefined;
  missing?: string | undefined;
}

interface Status {
  state: "none" | "running" | "cancelled" | "failed" | "done";
  files: string[];
  brought: string | null;
  file?: string;
  error?: string;
  text?: string;
  done?: number;
  total?: number;
  unit?: string;
  n?: number;
  corrected_for?: string;
  warnings?: string[];
  overall?: Overall[];
  slices?: SinceSlice[];
  more?: number;
}

const POLL = 500;

function OwnData({ content }: ViewGiven) {
  const [status, show] = useState<Status | null>(null);
  const [file, choose] = useState<File | null>(null);
  const [named, name] = useState(0);
  const asking = useAsking();
  useEffect(() => asking.ask(async (signal) => show(await get<Status>("own", signal))), []);
  useEffect(() => {
    if (status?.state !== "running") return;
    const stop = new AbortController();
    const timer = setTimeout(() => {
      get<Status>("own", stop.signal).then(show, () => {
        // Asked again with the next try, unless nobody answers any more.
        if (!stop.signal.aborted) show({ ...status });
      });
    }, POLL);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [status]);
  const start = (given: { file?: number }) =>
    asking.ask(async (signal) => show(await post<Status>("own/start", given, signal)));
  const send = () =>
    file &&
    asking.ask(async (signal) => {
      await upload(`upload/own?name=${encodeURIComponent(file.name)}`, file, signal);
      show(await post<Status>("own/start", {}, signal));
    });
  const cancel = () => asking.ask(async () => show(await post<Status>("own/cancel", {})));
  const isRunning = status?.state === "running";
  return (
    <main class="wide">
      <h1 class="view" tabIndex={-1}>
        Own data
      </h1>
      <p>
        How do the slices of this document do on examples of your own? The file needs the same columns, with the label
        and the predictions. It stays on this machine.
      </p>
      <form
        class="fields"
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
      >
        <label>
          File: Parquet, CSV, JSON Lines or TFRecord
          <input
            type="file"
            accept=".parquet,.pq,.csv,.jsonl,.ndjson,.tfrecord,.gz"
            required
            onChange={(event) => choose(event.currentTarget.files?.[0] ?? null)}
          />
        </label>
        <button disabled={asking.isBusy || isRunning || !file}>Send it to the program and check</button>
      </form>
      {status && status.files.length > 0 && (
        <form
          class="fields"
          onSubmit={(event) => {
            event.preventDefault();
            start({ file: named });
          }}
        >
          <label>
            Or a file that was named when the program was started
            <select value={named} onChange={(event) => name(Number(event.currentTarget.value))}>
              {status.files.map((one, at) => (
                <option key={one} value={at}>
                  {one}
                </option>
              ))}
            </select>
          </label>
          <button disabled={asking.isBusy || isRunning}>Check it</button>
        </form>
      )}
      {asking.error && <p role="alert">{asking.error}</p>}
      <p role="status">{asking.isBusy && !isRunning ? "The file is on its way." : said(status)}</p>
      {isRunning && (
        <p>
          <progress aria-label="Check" max={status.total} value={status.total ? status.done : undefined} />{" "}
          <button type="button" onClick={cancel}>
            Cancel
          </button>
        </p>
      )}
      {status?.state === "failed" && <p role="alert">{status.error}</p>}
      {status?.state === "done" && <Result content={content} status={status} />}
    </main>
  );
}

function said(status: Status | null): string {
  if (!status || status.state === "none") return "";
  const file = status.file ?? "";
  switch (status.state) {
    case "running": {
      const far = status.total ? `: ${format.count(status.done ?? 0)} of ${format.count(status.total)} ${status.unit ?? ""}` : "";
      return `${file} is being checked. ${status.text ?? ""}${far}`;
    }
    case "cancelled":
      return `The check of ${file} was cancelled.`;
    case "failed":
      return `The check of ${file} ended without a result.`;
    default:
      return `${file} is checked: ${format.plural(status.n ?? 0, "example")}.`;
  }
}

function Result({ content, status }: { content: Overview; status: Status }) {
  const isChange = content.comparison === "baseline";
  const overall = (status.overall ?? []).map((one): Compared => ({
    metric: one.metric,
    then: { n: one.n_then, value: one.then, delta: one.delta_then },
    now: { n: one.n_now, value: one.now, delta: one.delta_now },
    change: isChange ? one.delta_change : one.value_change,
  }));
  const slices = (status.slices ?? []).map(({ slice_id, name, metric, then, now, missing, ...one }) => ({
    ...{ slice_id, name, missing, metric: metric ?? "", then: side(then), now: side(now) },
    change: isChange ? one.difference && { ...one, difference: one.difference } : one.value_change,
  }));
  const isCertain = (one: Compared) => one.change?.significant ?? false;
  // What certainly differs comes first.
  const rows = slices.sort((one, other) => Number(isCertain(other)) - Number(isCertain(one)));
  const several = content.metrics.length > 1;
  return (
    <>
      <p>
        <strong>
          {format.plural(rows.filter(isCertain).length, "slice")} of {format.count(rows.length)} significantly{" "}
          {rows.filter(isCertain).length === 1 ? "differs" : "differ"} from the document.
        </strong>
      </p>
      {status.warnings?.map((one, at) => (
        <p key={at} class="note">
          {one}
        </p>
      ))}
      <div class="scrolled" role="region" aria-label="Document and own data" tabIndex={0}>
        <table class="cells">
          <caption class="legend">
            {status.corrected_for ? `Tests of differences: ${status.corrected_for}.` : ""}
          </caption>
          <thead>
            <tr>
              <th scope="col">Slice</th>
              {several && <th scope="col">Metric</th>}
              <th scope="col">Document</th>
              <th scope="col">Own data</th>
              <th scope="col">Difference</th>
            </tr>
          </thead>
          <tbody>
            {overall.map((one) => (
              <tr key={one.metric}>
                <th scope="row">All examples</th>
                <Sides one={one} content={content} several={several} />
              </tr>
            ))}
            {rows.map((one) => (
              <tr key={`${one.slice_id} ${one.metric}`}>
                <th scope="row">
                  <Link to={hashOf("slice", one.slice_id)}>{one.name}</Link>
                </th>
                <Sides one={one} content={content} several={several} />
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {!!status.more && <p>{format.plural(status.more, "further slice")} of the check could not be compared.</p>}
    </>
  );
}

function side(moment: Moment | undefined): Side | undefined {
  if (!moment) return undefined;
  const { n, value, value_interval, delta } = moment;
  return { n, value: value_interval ?? (value === undefined ? undefined : { value }), delta };
}

function Sides(given: { one: Compared; content: Overview; several: boolean }) {
  const { one, content, several } = given;
  const metric = metricOf(content, one.metric);
  const isChange = content.comparison === "baseline";
  const { change } = one;
  return (
    <>
      {several && <td>{metric.name}</td>}
      <td>
        <Numbers metric={metric} side={one.then} isChange={isChange} />
      </td>
      <td>
        <Numbers metric={metric} side={one.now} isChange={isChange} />
      </td>
      <td>
        {change?.difference.value != null ? (
          <>
            <b>{format.difference(metric, change.difference.value)}</b>{" "}
            <small>
              {format.differences(metric, change.difference.lo, change.difference.hi)}
              {change.significant ? `, significantly ${change.direction}` : ", not significant"}
            </small>
          </>
        ) : (
          <small>{one.missing || "not compared: too few examples"}</small>
        )}
      </td>
    </>
  );
}

/** The metric with its interval, and how the update changed it. */
function Numbers({ metric, side, isChange }: { metric: Metric; side: Side | undefined; isChange: boolean }) {
  if (!side) return <small>not in this data</small>;
  return (
    <>
      {side.value ? format.estimate(metric, side.value) : "undefined"}
      {isChange && side.delta?.value != null && (
        <small>
          update: {format.difference(metric, side.delta.value)} (
          {format.differences(metric, side.delta.lo, side.delta.hi)})
        </small>
      )}
      <small>{format.plural(side.n, "example")}</small>
    </>
  );
}

views.push({
  name: "own",
  title: "Own data",
  isHere: (content) => !content.views.includes("shift"),
  component: OwnData,
});
