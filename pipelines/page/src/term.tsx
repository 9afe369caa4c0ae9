import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";

/** A word with its meaning, which appears on hover and focus and goes with Escape. */
export function Term({ word, children }: { word: string; children: ComponentChildren }) {
  const [isHidden, hide] = useState(false);
  // The same word may stand in a page more than once.
  const id = useId();
  return (
    <span class={isHidden ? "term hidden" : "term"} onMouseLeave={() => hide(false)}>
      <dfn
        tabIndex={0}
        aria-describedby={id}
        onKeyDown={(event) => event.key === "Escape" && hide(true)}
        onBlur={() => hide(false)}
      >
        {word}
      </dfn>
      <span role="tooltip" id={id}>
        {children}
      </span>
    </span>
  );
}
