// What the labels say so far: precision and recall with their intervals, and the decision.
import * as format from "../format";
import type { Estimate } from "../model";

export interface StandingOf {
  looks: number;
  looked: number;
  labelled: number;
  decision: "accept" | "update" | "label more" | null;
  least_precision: number;
  least_recall: number;
  precision?: Estimate;
  recall?: Estimate;
  missed?: Estimate;
  notes?: string[];
}

const DECISIONS = {
  accept: "Accept: the words are true of the slice, and it holds what they are true of.",
  update: "Update: the slice is not what the words say.",
  "label more": "Label more: the intervals reach to both sides of what is wanted.",
};

export function Standing({ standing }: { standing: StandingOf }) {
  const { precision, recall, missed } = standing;
  if (!precision || !recall || !missed) return <p>No label counts yet.</p>;
  const looks = `look ${Math.max(1, standing.looked)} of ${standing.looks} planned`;
  return (
    <>
      <div class="scrolled standing" role="region" aria-label="Estimates so far" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Share</th>
              <th scope="col">{format.share(precision.confidence ?? 0.95)} interval</th>
              <th scope="col">Estimate</th>
              <th scope="col">Wanted</th>
            </tr>
          </thead>
          <tbody>
            <Line name="Precision" says="the words are true of the slice's examples" of={precision} wanted={standing.least_precision} />
            <Line name="Recall" says="the slice holds what the words are true of" of={recall} wanted={standing.least_recall} />
            <Line name="Missed" says="the words are true of examples outside the slice" of={missed} />
          </tbody>
        </table>
      </div>
      <p>
        <strong>
          {standing.decision ? DECISIONS[standing.decision] : "Undecided: a look decides, after the last label of the round."}
        </strong>{" "}
        {standing.decision && `(${looks})`}
      </p>
      <p class="legend">
        Few labels make the estimate of recall too high: the interval counts. The intervals allow for{" "}
        {format.plural(standing.looks, "look")}; whoever stops labelling when the numbers please needs more.
      </p>
      {standing.notes?.map((one, at) => (
        <p key={at} class="note">
          {one}
        </p>
      ))}
    </>
  );
}

function Line(given: { name: string; says: string; of: Estimate; wanted?: number }) {
  const { value, lo, hi } = given.of;
  return (
    <tr>
      <th scope="row">
        {given.name} <small>{given.says}</small>
      </th>
      <td>{lo == null || hi == null ? "not known" : `${percent(lo)} to ${percent(hi)}`}</td>
      <td>{value == null ? "not known" : percent(value)}</td>
      <td>{given.wanted === undefined ? "" : `at least ${percent(given.wanted)}`}</td>
    </tr>
  );
}

function percent(share: number): string {
  return `${(100 * share).toFixed(1)}%`;
}
