import type { ComponentChildren } from "preact";

import { go } from "./route";

/** A link to another view of the page. */
export function Link(given: { to: string; class?: string; current?: boolean; children: ComponentChildren }) {
  const follow = (event: MouseEvent) => {
    // A view of another page is opened by the browser.
    if (!given.to.startsWith("#")) return;
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(given.to);
  };
  return (
    <a href={given.to} class={given.class ?? ""} aria-current={given.current ? "page" : undefined} onClick={follow}>
      {given.children}
    </a>
  );
}
