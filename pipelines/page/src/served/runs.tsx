// The runs in a folder, the newest first.
import * as format from "../format";
import type { Overview, Since } from "../model";
import { Changed } from "../since";
import { counts, overall, primary } from "../verdict";

export interface Run {
  name: string;
  overview?: Overview;
  error?: string;
}

export function Runs({ runs }: { runs: Run[] }) {
  return (
    <main>
      <h1 tabIndex={-1}>{format.plural(runs.length, "run")}</h1>
      <ol class="runs">
        {runs.map(({ name, overview, error }) => (
          <li key={name}>
            <h2>
              <a href={`runs/${encodeURIComponent(name)}/`}>{name}</a>
            </h2>
            {overview ? (
              <>
                <p class="legend">
                  {format.date(overview.created_at)}, {overview.command}: {overview.dataset.name},{" "}
                  {format.plural(overview.dataset.n, "example")}
                </p>
                <p>
                  {overall(overview, primary(overview))} {counts(overview, primary(overview))}
                </p>
                {overview.since && <SinceThen name={name} overview={overview} since={overview.since} />}
              </>
            ) : (
              <p role="alert">This run can't be read: {error}</p>
            )}
          </li>
        ))}
      </ol>
    </main>
  );
}

/** What changed since the run before it. */
function SinceThen({ name, overview, since }: { name: string; overview: Overview; since: Since }) {
  return (
    <section class="since" aria-label={`${name}: since the earlier run`}>
      <h3>Since the run of {format.date(since.created_at)}</h3>
      <Changed content={overview} since={since} />
    </section>
  );
}
