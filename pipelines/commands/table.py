"""The commands, one entry each: their help, their options, and the functions that run them.

The references of an entry are imported when the command runs or its help is shown, so ``slicebeam
--help`` is quick.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slicebeam.pipelines.config.option_fields import OptionField

_RUN = "slicebeam.pipelines.commands.launch:run_command"
_DOCUMENT = "slicebeam.pipelines.commands.launch:document_command"
_SHOW_REVISION = "slicebeam.pipelines.show.define:show_revision"


@dataclass(frozen=True)
class CommandSpec:
    """A command of the command line, and of Python.

    The references are ``module:name``.

    Attributes
    ----------
    group : heading under which the list of commands has it
    help : a sentence, and further paragraphs
    main : function of the name, the flags that were given and the `launch.Invocation`; returns the
        exit code
    models : its options: the configuration first, then what does not change the result
    more_fields : function that returns further options; empty for none
    configure : function that validates the options of a command that tests slices; empty for others
    runs : function that runs it; empty for what only the command line has
    shows : prints what `runs` returns; empty for commands that print themselves
    """

    group: str
    help: str
    example: str
    main: str
    models: tuple[str, ...] = ()
    more_fields: str = ""
    configure: str = ""
    runs: str = ""
    shows: str = ""

    @property
    def summary(self) -> str:
        """The first sentence of its help."""
        return self.help.partition("\n")[0]

    @property
    def options(self) -> tuple[Any, ...]:
        """The models of its options."""
        return tuple(map(_named, self.models))

    def fields(self) -> list[OptionField]:
        """Return its options as flags."""
        from slicebeam.pipelines.config.option_fields import declared

        found = {name: one for model in self.options for name, one in declared(model).items()}
        if self.configure:
            found |= _of_own_data(found["data"], found["output"])
        return [*found.values(), *(_named(self.more_fields)() if self.more_fields else ())]

    @property
    def function(self) -> Any:
        """The function that runs it."""
        return _named(self.runs)

    def execute(self, name: str, given: dict[str, Any], invocation: Any) -> int:
        """Run it with the flags that were given, and return the exit code."""
        return int(_named(self.main)(name, given, invocation))

    def configured(self, options: dict[str, Any]) -> Any:
        """Return the validated configuration of a command that tests slices."""
        return _named(self.configure)(options)

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Run it, and return the result."""
        return self.function(*arguments, **options)

    def show(self, came: Any, config: Any) -> None:
        """Print the result."""
        _named(self.shows)(came, config)


def _named(reference: str) -> Any:
    return resolve_name(reference)


def _of_own_data(data: OptionField, output: OptionField) -> dict[str, OptionField]:
    """Return the data as an argument too, and the output with its default."""
    files = replace(
        data.option,
        help="Files or globs, as --data. Columns that no option names are guessed by their names.",
        is_argument=True,
    )
    place = replace(output.option, default="slicebeam-out/, and the name of the data")
    return {
        "data": replace(data, is_required=False, default=()),
        "output": replace(output, option=place, is_required=False, default=""),
        "files": replace(data, name="files", option=files, is_required=False, default=()),
    }


def _edit(name: str, config: str, help_: str, example: str, shows: str = "") -> CommandSpec:
    return CommandSpec(
        group="Edits",
        help=help_,
        example=f"slicebeam edit {name} --changelist out {example}".rstrip(),
        main=_DOCUMENT,
        models=(f"slicebeam.pipelines.config.document:{config}",),
        runs=f"slicebeam.pipelines.commands.edit:{name}",
        shows=shows or _SHOW_REVISION,
    )


# The groups of the list of commands are shown in the order in which they come first.
COMMANDS: dict[str, CommandSpec] = {
    "search": CommandSpec(
        group="Find",
        help="Find the slices where a model is worse, or became worse.",
        example="slicebeam search 'eval/*.parquet' --label income --prediction pred --output out",
        main=_RUN,
        models=(
            "slicebeam.pipelines.config.search:SearchConfig",
            "slicebeam.pipelines.config.run_options:SearchRunOptions",
        ),
        configure="slicebeam.pipelines.config.search:search_config",
        runs="slicebeam.pipelines.search.search:run_search",
    ),
    "discover": CommandSpec(
        group="Find",
        help="Find the groups of texts or images where a model changed.\n\n"
        "Anything that has embeddings can be grouped. With one model, the command finds the "
        "groups where it is worse than elsewhere.\n\n"
        "A mixture over the embeddings gives each example a component. Components are then "
        "searched, tested and corrected like any other feature.",
        example="slicebeam discover reviews.parquet --text review --label stars "
        "--prediction new --baseline-prediction old --output out",
        main=_RUN,
        models=(
            "slicebeam.pipelines.config.discover:DiscoverConfig",
            "slicebeam.pipelines.config.run_options:DiscoverRunOptions",
        ),
        configure="slicebeam.pipelines.config.discover:discover_config",
        runs="slicebeam.pipelines.discovery.discover:run_discovery",
    ),
    "check": CommandSpec(
        group="Find",
        help="Test known slices on new data, without a search.\n\n"
        "The slices come from an earlier run (--changelist), from a file of predicates "
        "(--slices) or from an EvalConfig of TensorFlow Model Analysis "
        "(--eval-config).\n\n"
        "With --changelist, options that you leave out are taken from that run: label, "
        "prediction, metric, test and so on.",
        example="slicebeam check new.parquet --changelist out/changelist.json --output checked "
        "--fail-on worse",
        main=_RUN,
        models=(
            "slicebeam.pipelines.config.check:CheckConfig",
            "slicebeam.pipelines.config.run_options:RunOptions",
        ),
        configure="slicebeam.pipelines.config.check:check_config",
        runs="slicebeam.pipelines.check.check:run_check",
    ),
    "define": CommandSpec(
        group="Describe",
        help="Define a slice by hand: with words, a predicate, ids, labels or a language "
        "model.\n\n"
        "The command counts the slice on the data and adds it to a new revision of the "
        "ChangeList, in the same folder. --llm-filter calls a language model for every "
        "example.",
        example="slicebeam define --changelist out --name 'young women' --where 'age < 25 & sex = Female'",
        main=_DOCUMENT,
        models=("slicebeam.pipelines.config.document:DefineConfig",),
        runs="slicebeam.pipelines.define.defining:define_slice",
        shows=_SHOW_REVISION,
    ),
    "edit": CommandSpec(
        group="Describe",
        help="Change the slices of a ChangeList. Every edit can be undone.\n\n"
        "Each edit writes a new revision to the same folder. The document itself does not "
        "change.",
        example="slicebeam edit rename --changelist out --slice 1f0c --name 'young women'",
        main="",
    ),
    "attribute": CommandSpec(
        group="Describe",
        help="Test with a few labels whether words describe a slice.\n\n"
        "The command estimates the precision and recall of the words, with intervals.",
        example="slicebeam attribute sample --changelist out --slice 1f0c --text 'mentions a refund' "
        "--budget 100",
        main="",
    ),
    "show": CommandSpec(
        group="Describe",
        help="Print the slices of a ChangeList, or the examples of a slice.\n\n"
        "With --text, those that are nearest to a text come first: the encoder of the discovery embeds "
        "both.",
        example="slicebeam show out --text 'the delivery was late'",
        main=_DOCUMENT,
        models=("slicebeam.pipelines.config.document:ShowConfig",),
        runs="slicebeam.pipelines.commands.show:show",
        shows="slicebeam.pipelines.commands.show:show_rows",
    ),
    "report": CommandSpec(
        group="Describe",
        help="Write a page that shows a result: report.html, in the folder of the "
        "ChangeList.\n\n"
        "The page is one file. It opens in a browser from a disk or an email, and needs no "
        "network. It contains examples only with --examples.",
        example="slicebeam report out",
        main=_DOCUMENT,
        models=("slicebeam.pipelines.config.document:ReportConfig",),
        runs="slicebeam.pipelines.page.report:write_report",
        shows="slicebeam.pipelines.page.report:show_report",
    ),
    "serve": CommandSpec(
        group="Describe",
        help="Show a result in the browser, with all tested slices and the examples.\n\n"
        "The page is served on this machine only, to who has the address that is printed.",
        example="slicebeam serve out --open",
        main="slicebeam.pipelines.commands.serve:serve",
        models=("slicebeam.pipelines.config.serve:ServeConfig",),
    ),
    "export": CommandSpec(
        group="Describe",
        help="Write a ChangeList in the format of another tool.",
        example="slicebeam export tfma out --to out/tfma",
        main="",
    ),
    "adapt": CommandSpec(
        group="Test",
        help="Grow tests of a model, and see which topics an update fixed and broke.\n\n"
        "Tests are in topics, in a CSV file as AdaTest writes it.",
        example="slicebeam adapt run tests.csv --model models:new --baseline-model models:old --output out",
        main="",
    ),
    "shift": CommandSpec(
        group="APIs",
        help="Estimate how a paid prediction API changed, from few calls.\n\n"
        "The command writes each answer to the ledger before it uses it. When run again, it "
        "calls the API only for missing answers. A call without an answer may have been "
        "charged: 'lost_calls' in the --api file decides whether its item is sent again.",
        example="slicebeam shift pool.parquet --label label --old-prediction old --api api.yaml "
        "--budget 5USD --output out",
        main=_RUN,
        models=(
            "slicebeam.pipelines.config.shift:ShiftConfig",
            "slicebeam.pipelines.config.run_options:ShiftRunOptions",
        ),
        configure="slicebeam.pipelines.config.shift:shift_config",
        runs="slicebeam.pipelines.shift.run:run_shift",
    ),
    "run": CommandSpec(
        group="Run",
        help="Run the command in a file, or repeat an earlier run.\n\n"
        "Models, encoders, APIs and engines in the changelist.json of a run are not used "
        "unless you name them again, because they run code or send data. With your own "
        "file, those that you name replace the file's.",
        example="slicebeam run nightly.yaml --resume --log-format json",
        main="slicebeam.pipelines.commands.run_file:run_file",
        models=(
            "slicebeam.pipelines.commands.run_file:FileConfig",
            "slicebeam.pipelines.config.run_options:FileRunOptions",
        ),
        more_fields="slicebeam.pipelines.commands.run_file:replaceable",
    ),
    "schema": CommandSpec(
        group="Run",
        help="Print the JSON Schema of the ChangeList.",
        example="slicebeam schema > changelist.schema.json",
        main="slicebeam.pipelines.commands.demo:print_schema",
    ),
    "demo": CommandSpec(
        group="Run",
        help="Search census data that ships with the package, and show the results.",
        example="slicebeam demo",
        main="slicebeam.pipelines.commands.demo:run_demo",
        models=("slicebeam.pipelines.commands.demo:DemoConfig",),
    ),
}

# The commands within a command.
SUBCOMMANDS: dict[str, dict[str, CommandSpec]] = {
    "edit": {
        "rename": _edit(
            "rename",
            "RenameConfig",
            "Give a slice another name.",
            "--slice 1f0c --name 'young women'",
        ),
        "describe": _edit(
            "describe",
            "DescribeConfig",
            "Write the description of a slice.",
            "--slice 1f0c --text 'Students, mostly.'",
        ),
        "annotate": _edit(
            "annotate",
            "AnnotateConfig",
            "Add a note to a slice.",
            "--slice 1f0c --note 'ticket 12'",
        ),
        "remove": _edit("remove", "SliceConfig", "Remove a slice.", "--slice 1f0c"),
        "merge": _edit(
            "merge",
            "MergeConfig",
            "Merge slices into one, which holds the examples of any of them.",
            "--slice 1f0c --slice 77aa --name students",
        ),
        "split": _edit(
            "split",
            "SplitConfig",
            "Split a slice into two by a predicate.",
            "--slice 1f0c --where 'age < 25'",
        ),
        "undo": _edit(
            "undo", "DocumentConfig", "Reverse the last edit that has not been undone yet.", ""
        ),
        "log": _edit(
            "log",
            "LogConfig",
            "Print the edits, in order.",
            "",
            shows="slicebeam.pipelines.commands.edit:show_log",
        ),
    },
    "export": {
        "tfma": CommandSpec(
            group="Tools",
            help="Write a ChangeList as an output folder of TensorFlow Model Analysis.\n\n"
            "tfma.load_eval_result, tfma.view and tfma.load_validation_result read it. Bins, lists of "
            "values and missing values become derived columns; slices.json says what they stand for.",
            example="slicebeam export tfma out --to out/tfma",
            main=_DOCUMENT,
            models=("slicebeam.pipelines.commands.export:ExportTfmaConfig",),
            runs="slicebeam.pipelines.commands.export:tfma",
            shows="slicebeam.pipelines.commands.export:show_exported",
        )
    },
    "adapt": {
        "run": CommandSpec(
            group="Tests",
            help="Score a test tree, and report the topics that fail, and those fixed and broken.\n\n"
            "A topic with those below it is a slice of the ChangeList: with --baseline-model the two "
            "models are compared test by test (McNemar's test, Benjamini-Hochberg over all topics). An "
            "answer that an endpoint sold is in the ledger before it is used, and is not paid twice.",
            example="slicebeam adapt run tests.csv --model models:new --baseline-model models:old "
            "--output out --fail-on worse",
            main="slicebeam.pipelines.commands.adapt:run_command",
            models=("slicebeam.pipelines.config.adapt:AdaptRunConfig",),
            runs="slicebeam.pipelines.commands.adapt:run",
            shows="slicebeam.pipelines.adaptive.topics_printed:show",
        ),
        "suggest": CommandSpec(
            group="Tests",
            help="Propose tests of a topic, score them by a model, and write those that fail first.\n\n"
            "Templates, a pool of texts and another tree need no language model; with --endpoint one goes "
            "on with the tests of the topic. Tests that you accept into the tree steer what is proposed next.",
            example="slicebeam adapt suggest tests.csv --model models:new --topic /Negation --pool texts.txt "
            "-k 100",
            main=_DOCUMENT,
            models=("slicebeam.pipelines.config.adapt:AdaptSuggestConfig",),
            runs="slicebeam.pipelines.adaptive.suggestions.suggest:suggest",
            shows="slicebeam.pipelines.adaptive.suggestions.printed:show_suggestions",
        ),
        "export-training": CommandSpec(
            group="Files",
            help="Write failing tests with the label that is right, to train on.\n\n"
            "The file has the columns of texts and labels of the data, the topic, and a weight: tests of the "
            "same text share the weight 1. Tests that say no label are left out and counted. Exported tests are "
            "marked in the tree, so that slicebeam adapt run says which topics were trained on.",
            example="slicebeam adapt export-training tests.csv --changelist out --data train.parquet "
            "--label label --to more.parquet",
            main=_DOCUMENT,
            models=("slicebeam.pipelines.config.adapt:ExportTrainingConfig",),
            runs="slicebeam.pipelines.adaptive.training:export_training",
            shows="slicebeam.pipelines.adaptive.topics_printed:show_exported",
        ),
        "from": CommandSpec(
            group="Files",
            help="Make topics of the slices that a run found, with their failing examples as tests.\n\n"
            "A test expects the label of its example. The examples that the model gets wrong come first, of "
            "two models those that the update broke.",
            example="slicebeam adapt from out --text review --to tests.csv",
            main=_DOCUMENT,
            models=("slicebeam.pipelines.config.adapt:AdaptFromConfig",),
            runs="slicebeam.pipelines.adaptive.from_slices.make_tests:make_tests",
            shows="slicebeam.pipelines.adaptive.from_slices.make_tests:show_tests",
        ),
        "import-checklist": CommandSpec(
            group="Files",
            help="Write the test tree of a CheckList suite: a topic each test, a test each case.\n\n"
            "The suite is a table with the columns test, capability, type, input and label. What a test "
            "expects beyond a label is code in CheckList; say it in --expectations.",
            example="slicebeam adapt import-checklist sentiment.parquet --to sentiment.csv "
            "--expectations sentiment.yaml",
            main=_DOCUMENT,
            models=("slicebeam.pipelines.config.adapt:ImportChecklistConfig",),
            runs="slicebeam.pipelines.adaptive.checklist:import_checklist",
            shows="slicebeam.pipelines.adaptive.topics_printed:show_imported",
        ),
    },
    "attribute": {
        "sample": CommandSpec(
            group="Rounds",
            help="Write the items to label, as CSV.\n\n"
            "Fill in the column label with yes, no or unsure in either file. When run "
            "again, the command draws another round.",
            example="slicebeam attribute sample --changelist out --slice 1f0c "
            "--text 'mentions a refund' --budget 100",
            main=_DOCUMENT,
            models=("slicebeam.pipelines.config.document:SampleConfig",),
            runs="slicebeam.pipelines.commands.attribute:sample",
            shows="slicebeam.pipelines.commands.attribute:show_round",
        ),
        "estimate": CommandSpec(
            group="Rounds",
            help="Estimate precision and recall from the labels, and publish them in a new revision.",
            example="slicebeam attribute estimate --changelist out --slice 1f0c "
            "--text 'mentions a refund'",
            main=_DOCUMENT,
            models=("slicebeam.pipelines.config.document:AttributionConfig",),
            runs="slicebeam.pipelines.commands.attribute:estimate",
            shows="slicebeam.pipelines.commands.attribute:show_estimate",
        ),
        "run": CommandSpec(
            group="Rounds",
            help="Label in rounds until there is a decision: from a column, with a language "
            "model, or by hand.\n\n"
            "If stopped, the command continues when run again with the same options. No "
            "item is labelled twice.",
            example="slicebeam attribute run --changelist out --slice 1f0c --text 'mentions a refund' "
            "--labels refund --budget 400 --rounds 4",
            main=_DOCUMENT,
            models=("slicebeam.pipelines.config.document:RoundsConfig",),
            runs="slicebeam.pipelines.commands.attribute:run",
            shows="slicebeam.pipelines.commands.attribute:show_estimate",
        ),
    },
}


def command_spec(name: str) -> CommandSpec:
    """Return a command by its words, such as ``search`` or ``edit rename``."""
    first, _, second = name.partition(" ")
    return SUBCOMMANDS[first][second] if second else COMMANDS[first]
