// Which classes are predicted for which labels: in the slice, and in the other examples or by the old model.
import * as format from "./format";
import type { ConfusionTables } from "./model";

export function Confusion({ confusion }: { confusion: ConfusionTables }) {
  const { inside, outside, inside_before: before } = confusion;
  const classes = confusion.classes.map((name) => (name === null ? "other" : String(name)));
  const here = shares(inside);
  const there = shares(before ?? outside);
  return (
    <section class="confusion">
      <h2>{title(classes, here, there, before ? "before" : "elsewhere")}</h2>
      <p class="note">Rows are labels, columns what the model says; shares are of the label.</p>
      <div class="matrices">
        <Matrix caption={before ? "This slice, now" : "This slice"} classes={classes} counts={inside} parts={here} />
        <Matrix caption={before ? "This slice, before" : "All other examples"} classes={classes} counts={before ?? outside} parts={there} />
      </div>
    </section>
  );
}

function shares(counts: number[][]): number[][] {
  return counts.map((row) => {
    const all = row.reduce((sum, count) => sum + count, 0);
    return row.map((count) => (all ? count / all : NaN));
  });
}

/** The mistake whose share is higher by most. */
function title(classes: string[], here: number[][], there: number[][], where: string): string {
  let most = { gap: 0, text: "Labels and predictions" };
  here.forEach((row, label) =>
    row.forEach((share, said) => {
      const other = there[label]?.[said] ?? NaN;
      if (label === said || !(share - other > most.gap)) return;
      most = {
        gap: share - other,
        text: `${classes[label]} called ${classes[said]}: ${format.share(share)} here, ${format.share(other)} ${where}`,
      };
    }),
  );
  return most.text;
}

function Matrix({ caption, classes, counts, parts }: { caption: string; classes: string[]; counts: number[][]; parts: number[][] }) {
  return (
    <div>
      <table class="matrix">
        <caption>{caption}</caption>
        <thead>
          <tr>
            <th scope="col">Label</th>
            {classes.map((name) => (
              <th scope="col" key={name}>
                said {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {counts.map((row, label) => (
            <tr key={label}>
              <th scope="row">{classes[label]}</th>
              {row.map((count, said) => {
                const share = parts[label]?.[said] ?? NaN;
                return (
                  <td key={said} class={label === said ? "right" : share >= 0.2 ? "wrong often" : "wrong"}>
                    <b>{Number.isNaN(share) ? "–" : format.share(share)}</b> <small>{format.count(count)}</small>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
