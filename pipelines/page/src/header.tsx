// The bar that is above every view: the views, and what the result is of.
import type { ComponentChildren } from "preact";

import * as format from "./format";
import type { Overview } from "./model";

export function Header({ content, children }: { content: Overview; children: ComponentChildren }) {
  const { dataset, models, earlier_data: earlier } = content;
  const ordered = [...models].sort((a, b) => Number(a.role === "after") - Number(b.role === "after"));
  return (
    <header class="top">
      <div>
        <strong class="logo">
          <svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">
            <rect x=".75" y=".75" width="14.5" height="14.5" rx="3" fill="none" stroke="currentColor" stroke-width="1.5" />
            <path class="bar worse" d="M1 11 15 5v4L1 15z" />
          </svg>
          slicebeam
        </strong>
        <nav aria-label="Views">{children}</nav>
        <dl class="facts">
          <Fact name="Data">{earlier ? `${dataset.name}, against earlier data` : dataset.name}</Fact>
          <Fact name={models.length > 1 ? "Models" : "Model"}>{ordered.map(({ name }) => name).join(" → ")}</Fact>
          <Fact name="Examples">{format.count(dataset.n)}</Fact>
          <Fact name="Run">{`${content.command}, ${format.date(content.created_at)}`}</Fact>
        </dl>
      </div>
    </header>
  );
}

function Fact({ name, children }: { name: string; children: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
