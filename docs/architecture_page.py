"""Writes docs/explanation/architecture.md from the rooms of the code: ``python docs/architecture_page.py``."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
# Ground first: a room imports only from those before it. A folder stands for the modules that lie
# directly in it, except those named here.
ROOMS = {
    "metrics": """
        arrays.py errors.py chunks.py imported.py kinds.py randomness.py significance counting measures
        findings discovery shift attribution
    """,
    "transforms": "http storage formats encode count discovery tfma",
    "runner_configs": "",
    "pipelines": """
        changelist run config prepare paid_api tfma discovery attribution search define shift show
        adaptive adaptive/proposers adaptive/suggestions adaptive/from_slices page commands
    """,
}
ORDER = tuple(
    entry
    for layer, names in ROOMS.items()
    for entry in (*(f"{layer}/{name}" for name in names.split()), layer)
)
_INTRO = """\
# Architecture

This page shows where the code of a step is. The first part follows a row of your data from the file to the
ChangeList; the second lists all rooms of the code. `python docs/architecture_page.py` writes the page, and a test
compares the imports of every module with the order of the rooms.

## The way of a row

`slicebeam search data.csv` does this, from top to bottom. Steps on the left, what does them on the right.

```text
command line, run file, Python            pipelines/commands/cli.py  pipelines/commands/api.py
  │ options, each declared once           pipelines/config/search.py
  ▼
the run: engine, work folder, lock        pipelines/run/open_run.py
  │                                       pipelines/search/search.py: run_steps, all that follows
  ▼
files ── Arrow tables of some rows        transforms/formats/  transforms/encode/sources.py
  │ a first pass over all columns:        transforms/encode/learn_domains.py
  │ values, quantiles, missing ones
  ▼
domains: what may be said of a feature    transforms/encode/domains.py
  │ a second pass: predictions, then      transforms/encode/extract_predictions.py
  │ a small integer for each value        transforms/encode/extract_slice_keys.py
  ▼
shards of integers in the work folder     transforms/encode/shards.py
  │ Which conjunctions? All of them, or   pipelines/search/strategies.py
  │ what a strategy proposes next         pipelines/search/iterations.py
  │ tables of several features at once    metrics/counting/counting_plan.py
  │ counted, summed over shards           metrics/counting/counting.py  transforms/count/search_graph.py
  ▼
sums of each slice                        metrics/counting/statistic_space.py
  │ value and test of a metric            metrics/measures/metric.py  metrics/measures/slice_test.py
  │ corrected for the number of tests     metrics/measures/multiplicity.py
  │ close calls are tested again          pipelines/search/significance.py
  ▼
significant slices                        pipelines/search/results.py
  │ the few that explain the others       metrics/findings/choice.py
  ▼
ChangeList and slices.parquet             pipelines/search/building.py  pipelines/search/slices_table.py
  │ published as a whole, or not at all   transforms/storage/publication.py
  ▼
terminal, page, exit code                 pipelines/show/  pipelines/page/  pipelines/search/summary.py
```

Rows are never handled one by one: between two steps there are tables of columns, and from the shards on arrays of
integers. An engine runs the steps between two files as a Beam pipeline; which one it is changes no byte of the
result. `slicebeam check` goes the same way with slices that you name, `discover` adds features that it learns from
embeddings, and `FindSlices` is the same graph within a pipeline of your own.

## The rooms

A room imports only from rooms above it in this list.
"""


def page() -> str:
    """Return the page."""
    parts = [_INTRO]
    for layer in ROOMS:
        parts += [f"### {layer}", "", _sentence(layer), ""]
        if entries := [entry for entry in ORDER if entry.startswith(f"{layer}/")]:
            parts += ["| room | what is in it |", "|---|---|"]
            parts += [
                f"| `{entry.removeprefix(f'{layer}/')}` | {_sentence(entry)} |" for entry in entries
            ]
            parts.append("")
    return "\n".join(parts)


def _sentence(entry: str) -> str:
    """Return the first sentence of the docstring of a folder or module."""
    path = ROOT / entry
    text = (path if path.suffix else path / "__init__.py").read_text("utf-8")
    documentation = ast.get_docstring(ast.parse(text)) or ""
    return documentation.partition("\n\n")[0].replace("\n", " ").replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
