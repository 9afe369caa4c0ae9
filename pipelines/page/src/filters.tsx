// What narrows the table of slices; all of it stands in the address.
import * as format from "./format";
import { Link } from "./link";
import type { Metric, Overview } from "./model";
import { hashOf } from "./route";
import { type Filter, LABELS } from "./filter";
import { Short } from "./short";
import { useEffect, useState } from "preact/hooks";

/** A condition to filter by. */
export interface Choice {
  text: string;
  field: string;
  /** What the address has. */
  key: string;
}

interface Given {
  content: Overview;
  conditions: Choice[];
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
  const [isOpen, open] = useState(isMore);
  // What the map or an address has set is seen; what is cleared leaves the boxes where they are.
  useEffect(() => {
    if (isMore) open(true);
  }, [isMore]);
  const inPoints = format.isShare(metric);
  const scale = inPoints ? 100 : 1;
  const unit = inPoints ? ", points" : "";
  return (
    <form class="filters" role="search" aria-label="Slices" onSubmit={(event) => event.preventDefault()}>
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
          placeholder="words, joined by &"
          onInput={(event) => set("text", event.currentTarget.value)}
        />
      </label>
      <ChooseCondition conditions={conditions} add={(key) => change((next) => next.append("with", key))} chosen={filter.conditions} />
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
      <details open={isOpen} onToggle={(event) => open(event.currentTarget.open)}>
        <summary>Size and delta</summary>
        <Bound name="least" text="n from" value={filter.least} none={0} set={set} />
        <Bound name="most" text="n to" value={filter.most} none={Infinity} set={set} />
        <Bound name="low" text={`delta from${unit}`} value={filter.low} none={-Infinity} scale={scale} set={set} />
        <Bound name="high" text={`delta to${unit}`} value={filter.high} none={Infinity} scale={scale} set={set} />
      </details>
      {(filter.conditions.length > 0 || filter.under) && (
        <p class="chosen">
          {filter.conditions.map((key) => (
            <button
              type="button"
              class="chip"
              key={key}
              aria-label={`Without ${textOf(conditions, key)}`}
              onClick={() =>
                change((next) => {
                  const others = next.getAll("with").filter((one) => one !== key);
                  next.delete("with");
                  for (const one of others) next.append("with", one);
                })
              }
            >
              <Short text={textOf(conditions, key)} /> ×
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

function textOf(conditions: Given["conditions"], key: string): string {
  return conditions.find((one) => one.key === key)?.text ?? key;
}

interface BoundGiven {
  name: string;
  text: string;
  value: number;
  /** The value that bounds nothing. */
  none: number;
  /** What is typed is so many times the value. */
  scale?: number;
  set: (name: string, value: string) => void;
}

function Bound({ name, text, value, none, scale = 1, set }: BoundGiven) {
  const [typed, type] = useState("");
  const meant = (text: string) => (text === "" ? none : Number(text) / scale);
  // What is being typed stays as it is, such as "0." and "-0"; the map and the address set a bound, too.
  const shown = meant(typed) === value ? typed : value === none ? "" : String(Number((value * scale).toPrecision(6)));
  return (
    <label>
      {text}{" "}
      <input
        type="number"
        step="any"
        value={shown}
        onInput={(event) => {
          const now = event.currentTarget.value;
          type(now);
          set(name, now === "" ? "" : String(meant(now)));
        }}
      />
    </label>
  );
}

/** A feature, then one of its values: the condition becomes a filter. */
function ChooseCondition(given: { conditions: Given["conditions"]; add: (text: string) => void; chosen: string[] }) {
  const [feature, choose] = useState("");
  const { conditions } = given;
  const features = [...new Set(conditions.map((one) => one.field))].sort();
  const own = conditions.filter((one) => one.field === feature && !given.chosen.includes(one.key));
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
              <option key={one.key} value={one.key} title={one.text}>
                {format.cut(one.text)}
              </option>
            ))}
          </select>
        </label>
      )}
    </>
  );
}
