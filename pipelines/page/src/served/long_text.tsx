// A text of which the beginning is shown, and all of it on demand.
import { useState } from "preact/hooks";

import * as format from "../format";

const SHOWN = 600;

export function LongText({ text, shown = SHOWN }: { text: string; shown?: number }) {
  const [isWhole, show] = useState(false);
  if (text.length <= shown * 1.2) return <span class="text">{text}</span>;
  return (
    <span class="text">
      {isWhole ? text : `${text.slice(0, shown)}… `}
      <button type="button" class="more" aria-expanded={isWhole} onClick={() => show(!isWhole)}>
        {isWhole ? "Show the beginning only" : `Show all ${format.count(text.length)} characters`}
      </button>
    </span>
  );
}
