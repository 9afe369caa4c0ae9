// What narrows the table of slices; all of it stands in the address.
import * as format from "./format";
import { Link } from "./link";
import type { Metric, Overview } from "./model";
import { hashOf } from "./route";
import { type Filter, LABELS } from "./filter";
import { useState } from "preact/hooks";

interface Given {
  content: Overview;
  conditions: { text: string; field: string }[];
  metric: Metric;
  filter: Filter;
  change: (update: (next: URLSearchParams) => void) => void;
  /** The name of the slice that explains those that are shown. */
  under: string;
}

export function Filters({ content, conditions, metric, filter, change, under }: Given) {
  const set = (name: string, value: string, none = "") =>
    change((next) => (value === none ? next.delete(name) : next.set(name, value)));
  const isMore = filter.least > 0 || filter.most < Infinity || filter.low > -Infinity || filter.high < Infinity;
  return (
    <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      {content.metrics.length > 1 && (
        <label>
          Metric{" "}
          <select value={metric.key} onChange={(event) => set("metric", event.currentTarget.value)}>
            {content.metrics.map((one) => (
              <option key={one.key} value={one.key}>
                {one.name}
              </option>
            ))}
          </select>
        </label>
      )}
      <label>
        Text{" "}
        <input
          type="search"
          value={filter.text}
          placeholder="age & female"
          onInput={(event) => set("text", event.currentTarget.value)}
        />
      </label>
      <ChooseCondition conditions={conditions} add={(text) => change((next) => next.append("with", text))} chosen={filter.conditions} />
      <label>
        Direction{" "}
        <select value={filter.direction} onChange={(event) => set("direction", event.currentTarget.value, "any")}>
          <option value="any">worse and better</option>
          <option value="worse">worse</option>
          <option value="better">better</option>
        </select>
      </label>
      <label>
        Label{" "}
        <select value={filter.label} onChange={(event) => set("label", event.currentTarget.value)}>
          <option value="">any</option>
          {LABELS.map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
      </label>
      <label>
        Conditions{" "}
        <select value={String(filter.level)} onChange={(event) => set("level", event.currentTarget.value, "0")}>
          <option value="0">any number</option>
          {[1, 2, 3].map((one) => (
            <option key={one} value={String(one)}>
              {format.count(one)}
            </option>
          ))}
        </select>
      </label>
      <label>
        <input
          type="checkbox"
          checked={filter.significant}
          onChange={(event) => set("significant", event.currentTarget.checked ? "yes" : "no")}
        />{" "}
        significant only
      </label>
      <label>
        <input
          type="checkbox"
          checked={filter.inherited}
          onChange={(event) => set("inherited", event.currentTarget.checked ? "yes" : "")}
        />{" "}
        with those that a slice above explains
      </label>
      <details open={isMore}>
        <summary>Size and delta</summary>
        <Bound name="least" text="n from" value={filter.least} none={0} set={set} />
        <Bound name="most" text="n to" value={filter.most} none={Infinity} set={set} />
        <Bound name="low" text="delta from" value={filter.low} none={-Infinity} set={set} />
        <Bound name="high" text="delta to" value={filter.high} none={Infinity} set={set} />
      </details>
      {(filter.conditions.length > 0 || filter.under) && (
        <p class="chosen">
          {filter.conditions.map((text) => (
            <button
              type="button"
              class="chip"
              key={text}
              aria-label={`Without ${text}`}
              onClick={() =>
                change((next) => {
                  const others = next.getAll("with").filter((one) => one !== text);
                  next.delete("with");
                  for (const one of others) next.append("with", one);
                })
              }
            >
              {text} ×
            </button>
          ))}
          {filter.under && (
            <>
              explained by <Link to={hashOf("slice", filter.under)}>{under}</Link>{" "}
              <button type="button" onClick={() => set("under", "")}>
                All slices
              </button>
            </>
          )}
        </p>
      )}
    </form>
  );
}

function Bound(given: { name: string; text: string; value: number; none: number; set: (name: string, value: string) => void }) {
  return (
    <label>
      {given.text}{" "}
      <input
        type="number"
        step="any"
        value={given.value === given.none ? "" : String(given.value)}
        onInput={(event) => given.set(given.name, event.currentTarget.value)}
      />
    </label>
  );
}

/** A feature, then one of its values: the condition becomes a filter. */
function ChooseCondition(given: { conditions: Given["conditions"]; add: (text: string) => void; chosen: string[] }) {
  const [feature, choose] = useState("");
  const { conditions } = given;
  const features = [...new Set(conditions.map((one) => one.field))].sort();
  const own = conditions.filter((one) => one.field === feature && !given.chosen.includes(one.text));
  return (
    <>
      <label>
        Feature{" "}
        <select value={feature} onChange={(event) => choose(event.currentTarget.value)}>
          <option value="">any</option>
          {features.map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
      </label>
      {feature && (
        <label>
          Value{" "}
          <select
            value=""
            onChange={(event) => {
              given.add(event.currentTarget.value);
              choose("");
            }}
          >
            <option value="">choose</option>
            {own.map((one) => (
              <option key={one.text} value={one.text}>
                {one.text}
              </option>
            ))}
          </select>
        </label>
      )}
    </>
  );
}
