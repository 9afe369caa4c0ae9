"""The help of `slicebeam shift` speaks of what shift does."""

import math

import pytest

from slicebeam.pipelines.cli import run
from slicebeam.pipelines.commands.table import COMMANDS
from slicebeam.pipelines.config.run_options import RunOptions
from slicebeam.pipelines.config.shift import ShiftConfig
from slicebeam.pipelines.shift.simulated import CHURNS, BudgetPlan, better_methods
from slicebeam.pipelines.show.shift import show_plan


def test_help_has_nothing_of_other_commands(capsys):
    assert run(["shift", "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    # Options of search that shift lacks, what it does not write, and what it does not do.
    for strange in ("--loss", "slices.parquet", "resampled", "tables", "pays for none twice"):
        assert strange not in text
    assert "Required, except with --plan and --repeat" in text
    assert "--label <column> Column of the true classes. [required]" in text
    assert "'lost_calls' in the --api file decides whether its item is sent again" in text


def planned(method, churn, budget, error):
    return BudgetPlan(method, churn, budget, None, error, 0.1, 0.1)  # type: ignore[arg-type]


def test_a_plan_says_where_another_method_errs_less(capsys):
    rows = [
        planned("plus", 0.02, 250, 0.01),
        planned("masa", 0.02, 250, 0.03),
        *(planned("plus", None, budget, error) for budget, error in ((250, 0.04), (500, 0.03))),
        # 20 and 10 % less.
        *(planned("masa", None, budget, error) for budget, error in ((250, 0.032), (500, 0.027))),
        *(planned("proportional", None, budget, 0.1) for budget in (250, 500)),
        # Within chance.
        planned("plus", 0.1, 250, 0.02),
        planned("masa", 0.1, 250, 0.0195),
    ]
    (found,) = better_methods(rows)
    assert (found.churn, found.method) == (None, "masa")
    assert found.ratio == pytest.approx(math.sqrt(0.8 * 0.9))
    show_plan(rows, None, [found])
    shown = " ".join(capsys.readouterr().out.split())
    error = "--method masa has an error 15% smaller than plus for the same calls."
    assert f"With a completely new API, {error}" in shown
    assert better_methods([one for one in rows if one.method == "plus"]) == []
    assert None in CHURNS


def helps():
    return {one.name: one.help for one in COMMANDS["shift"].fields()}


def test_every_option_has_help_and_an_effect():
    # The files are data without their flag.
    known = {"files", *ShiftConfig.model_fields, *RunOptions.model_fields}
    for name, text in helps().items():
        assert name in known
        assert text.endswith((".", "]")), name


def test_help_names_only_flags_of_shift():
    flags = {"--" + name.replace("_", "-") for name in helps()} | {"--json"}
    for name, text in helps().items():
        for word in text.replace("(", " ").replace(")", " ").split():
            if word.startswith("--"):
                assert word.strip(".,:;") in flags, (name, word)
