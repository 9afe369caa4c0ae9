// Where the calls of a shift went: each stratum beside the calls that would give the least error.
import * as format from "./format";
import type { Shift, Stratum } from "./model";
import { Stratum as StratumTerm, Variance } from "./words";

export function Strata({ shift }: { shift: Shift }) {
  const { strata } = shift;
  const hasBins = strata.some((one) => one.missing || one.low != null || one.high != null);
  return (
    <section>
      <h2>Where the calls went</h2>
      <p class="legend">
        Calls by <StratumTerm />. Optimal: as many calls in all, so that the error is least. They are in proportion to the
        items times the square root of the <Variance /> of the answers
        {shift.reliance ? ", less what the old answers explain" : ""}
        {shift.focus && `, by the weights of --focus ${shift.focus.of}`}; they can exceed the items.
        {hasBins && shift.method === "plus" && " The confidence is negative where the old answer was wrong."}
      </p>
      <div class="scrolled" tabIndex={0} role="region" aria-label="Where the calls went">
        <table class="strata">
          <thead>
            <tr>
              <th scope="col">Label</th>
              {hasBins && <th scope="col">Confidence</th>}
              <th scope="col">Items</th>
              <th scope="col">Calls</th>
              <th scope="col">Optimal calls</th>
              <th scope="col">Variance</th>
            </tr>
          </thead>
          <tbody>
            {strata.map((one, at) => (
              <tr key={at}>
                <th scope="row">{String(one.label)}</th>
                {hasBins && <td>{bin(one)}</td>}
                <td>{format.count(one.size)}</td>
                <td>{format.count(one.calls)}</td>
                <td>{one.optimal_calls == null ? "not known" : format.count(Math.round(one.optimal_calls))}</td>
                <td>{one.variance == null ? "not known" : one.variance.toPrecision(3)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function bin({ low, high, missing }: Stratum): string {
  if (missing) return "not known";
  if (low == null) return high == null ? "any" : `below ${shown(high)}`;
  return high == null ? `${shown(low)} or more` : `${shown(low)} to below ${shown(high)}`;
}

function shown(edge: number): string {
  return String(Number(edge.toPrecision(6))).replace("-", "\u2212");
}
