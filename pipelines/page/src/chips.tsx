// What a slice is, as chips: the feature grey, its value dark; the exact text is the title.
import { Short } from "./short";

/** A condition as a chip shows it. */
export interface Chip {
  text: string;
  /** Feature and value; absent where the text is no single condition. */
  parts?: [string, string];
}

export function Chips({ conditions, name }: { conditions: Chip[]; name?: string }) {
  const exact = conditions.map(({ text }) => text).join(" & ");
  return (
    <span class="chips" title={exact}>
      {name && name !== exact && <b>{name}</b>}
      {conditions.map(({ text, parts }, at) => (
        <span class="chip" key={at}>
          {parts ? (
            <>
              <i>{parts[0]}</i> <Short text={parts[1]} />
            </>
          ) : (
            <Short text={text} />
          )}
        </span>
      ))}
    </span>
  );
}

/** What describes a discovered group, whose condition alone says nothing. */
export function Phrases({ phrases }: { phrases: string[] }) {
  return phrases.length ? <span class="phrases">{phrases.join(", ")}</span> : null;
}
