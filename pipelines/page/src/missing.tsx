import type { ComponentChildren } from "preact";

import { Link } from "./link";
import { hashOf } from "./route";

/** What stands in place of a view that the page has not. */
export function Missing({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <main>
      <h1 class="view" tabIndex={-1}>{title}</h1>
      <p>{children}</p>
      <p>
        <Link to={hashOf("overview")}>Overview</Link>
      </p>
    </main>
  );
}
