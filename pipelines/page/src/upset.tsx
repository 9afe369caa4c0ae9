// Which findings hold the same examples (UpSet): a row for each set of examples, the largest first.
import * as format from "./format";
import { Link } from "./link";
import type { FindingModel, Overview } from "./model";
import { hashOf } from "./route";
import { metricOf } from "./verdict";

const MOST = 10;

/** The sets of examples, all of them or those in one finding. */
export function UpSet({ content, model, rank }: { content: Overview; model: FindingModel; rank?: number }) {
  const metric = metricOf(content, model.metric);
  const isChange = content.comparison === "baseline";
  const sets = (model.intersections ?? []).filter((one) => rank === undefined || one.findings.includes(rank));
  const found = content.findings.filter(
    (one) => one.metric === model.metric && one.direction === model.direction && one.rank <= MOST,
  );
  if (!sets.length) return null;
  const largest = Math.max(...sets.map((one) => one.share));
  const all = (model.intersections ?? []).reduce((sum, one) => sum + one.share, 0);
  return (
    <>
      <p class="legend">
        Each row is a set of examples that are in the same of the first {format.plural(found.length, "finding")}: a dot marks
        those.{all < 0.9995 && ` The smallest sets, ${format.share(1 - all)} of the examples together, are left out.`} Values of
        sets have no interval: no set was tested.
      </p>
      <div class="scrolled" tabIndex={0} role="region" aria-label="Sets of examples by finding">
        <table class="upset">
          <thead>
            <tr>
              {found.map((one) => (
                <th scope="col" key={one.rank}>
                  <Link to={hashOf("slice", one.slice_id)}>{one.rank}</Link>
                </th>
              ))}
              <th scope="col" class="wide">Share of the examples</th>
              <th scope="col">{isChange ? `Change of ${metric.name}` : metric.name}</th>
            </tr>
          </thead>
          <tbody>
            {sets.map((one) => (
              <tr key={one.findings.join()}>
                {found.map((finding) => (
                  <td key={finding.rank} class="dot">
                    {one.findings.includes(finding.rank) ? "●" : ""}
                  </td>
                ))}
                <td>
                  <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
                    <rect class="share" width={(100 * one.share) / largest} height={10} />
                  </svg>
                  {format.share(one.share)}
                  {one.findings.length === 0 && " in none"}
                </td>
                <td>{one.value === null ? "undefined" : (isChange ? format.difference : format.value)(metric, one.value)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
