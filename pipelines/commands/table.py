"""The commands, an entry each; those within a command follow it, as ``edit rename``."""

from __future__ import annotations

from slicebeam.pipelines.commands.command import CommandSpec, DataCommand, FileCommand, RunCommand


def _edit(name: str, help_: str, example: str = "", options: str = "") -> CommandSpec:
    return CommandSpec(
        group="Edits",
        help=help_,
        example=f"slicebeam edit {name} --changelist out {example}".rstrip(),
        options=f"config.document:{options or name.title()}Config",
        runs="commands.edit:edit",
        shows="show.define:show_revision",
        json="show.define:revision_json",
    )


# The groups of the list of commands are shown in the order in which they come first.
COMMANDS: dict[str, CommandSpec] = {
    "search": DataCommand(
        group="Find",
        help="Find the slices where a model is worse, or became worse.",
        example="slicebeam search 'eval/*.parquet' --label income --prediction pred --output out",
        options="config.search:SearchConfig",
        run_options="config.run_options:SearchRunOptions",
        configures="config.search:search_config",
        runs="search.search:run_search",
    ),
    "discover": DataCommand(
        group="Find",
        help="Find the groups of texts or images where a model changed.\n\n"
        "Anything that has embeddings can be grouped. With one model, the command finds the groups where it "
        "is worse than elsewhere.\n\n"
        "A mixture over the embeddings gives each example a component. Components are then searched, tested "
        "and corrected like any other feature.",
        example="slicebeam discover reviews.parquet --text review --label stars "
        "--prediction new --baseline-prediction old --output out",
        options="config.discover:DiscoverConfig",
        run_options="config.run_options:DiscoverRunOptions",
        runs="search.discover:run_discovery",
    ),
    "check": DataCommand(
        group="Find",
        help="Test known slices on new data, without a search.\n\n"
        "The slices come from an earlier run (--changelist), from a file of predicates (--slices) or from an "
        "EvalConfig of TensorFlow Model Analysis (--eval-config).\n\n"
        "With --changelist, options that you leave out are taken from that run: label, prediction, metric, "
        "test and so on.",
        example="slicebeam check new.parquet --changelist out/changelist.json --output checked "
        "--fail-on worse",
        options="config.check:CheckConfig",
        configures="config.check:check_config",
        runs="search.search:run_check",
    ),
    "define": CommandSpec(
        group="Describe",
        help="Define a slice by hand: with words, a predicate, ids, labels or a language model.\n\n"
        "The command counts the slice on the data and adds it to a new revision of the ChangeList, in the "
        "same folder. --llm-filter calls a language model for every example.",
        example="slicebeam define --changelist out --name 'young women' --where 'age < 25 & sex = Female'",
        options="config.document:DefineConfig",
        runs="define.defining:define_slice",
        shows="show.define:show_revision",
        json="show.define:revision_json",
    ),
    "edit": CommandSpec(
        group="Describe",
        help="Change the slices of a ChangeList. Every edit can be undone.\n\n"
        "Each edit writes a new revision to the same folder. The document itself does not change.",
        example="slicebeam edit rename --changelist out --slice 1f0c --name 'young women'",
    ),
    "edit rename": _edit(
        "rename", "Give a slice another name.", "--slice 1f0c --name 'young women'"
    ),
    "edit describe": _edit(
        "describe", "Write the description of a slice.", "--slice 1f0c --text 'Students, mostly.'"
    ),
    "edit annotate": _edit("annotate", "Add a note to a slice.", "--slice 1f0c --note 'ticket 12'"),
    "edit remove": _edit("remove", "Remove a slice.", "--slice 1f0c", "Slice"),
    "edit merge": _edit(
        "merge",
        "Merge slices into one, which holds the examples of any of them.",
        "--slice 1f0c --slice 77aa --name students",
    ),
    "edit split": _edit(
        "split", "Split a slice into two by a predicate.", "--slice 1f0c --where 'age < 25'"
    ),
    "edit undo": _edit(
        "undo", "Reverse the last edit that has not been undone yet.", options="Document"
    ),
    "edit log": CommandSpec(
        group="Edits",
        help="Print the edits, in order.",
        example="slicebeam edit log --changelist out",
        options="config.document:DocumentConfig",
        runs="commands.edit:log",
        shows="commands.edit:show_log",
    ),
    "attribute": CommandSpec(
        group="Describe",
        help="Test with a few labels whether words describe a slice.\n\n"
        "The command estimates the precision and recall of the words, with intervals.",
        example="slicebeam attribute sample --changelist out --slice 1f0c --text 'mentions a refund' "
        "--budget 100",
    ),
    "attribute sample": CommandSpec(
        group="Rounds",
        help="Write the items to label, as CSV.\n\n"
        "Fill in the column label with yes, no or unsure in either file. When run again, the command draws "
        "another round.",
        example="slicebeam attribute sample --changelist out --slice 1f0c "
        "--text 'mentions a refund' --budget 100",
        options="config.document:SampleConfig",
        runs="commands.attribute:sample",
        shows="show.attribution:show_sampled",
        json="show.attribution:sampled_json",
    ),
    "attribute estimate": CommandSpec(
        group="Rounds",
        help="Estimate precision and recall from the labels, and publish them in a new revision.",
        example="slicebeam attribute estimate --changelist out --slice 1f0c "
        "--text 'mentions a refund'",
        options="config.document:AttributionConfig",
        runs="commands.attribute:estimate",
        shows="show.attribution:show_finished",
        json="show.attribution:finished_json",
    ),
    "attribute run": CommandSpec(
        group="Rounds",
        help="Label in rounds until there is a decision: from a column, with a language model, or by hand.\n\n"
        "If stopped, the command continues when run again with the same options. No item is labelled twice.",
        example="slicebeam attribute run --changelist out --slice 1f0c --text 'mentions a refund' "
        "--labels refund --budget 400 --rounds 4",
        options="config.document:RoundsConfig",
        runs="commands.attribute:run",
        shows="show.attribution:show_finished",
        json="show.attribution:finished_json",
    ),
    "show": CommandSpec(
        group="Describe",
        help="Print the slices of a ChangeList, or the examples of a slice.\n\n"
        "With --text, those that are nearest to a text come first: the encoder of the discovery embeds both.",
        example="slicebeam show out --text 'the delivery was late'",
        options="config.document:ShowConfig",
        runs="commands.show:show",
        shows="commands.show:show_rows",
    ),
    "report": CommandSpec(
        group="Describe",
        help="Write a page that shows a result: report.html, in the folder of the ChangeList.\n\n"
        "The page is one file. It opens in a browser from a disk or an email, and needs no network. It "
        "contains examples only with --examples.",
        example="slicebeam report out",
        options="config.document:ReportConfig",
        runs="page.report:write_report",
        shows="page.report:show_report",
        json="page.report:report_json",
    ),
    "serve": CommandSpec(
        group="Describe",
        help="Show a result in the browser, with all tested slices and the examples.\n\n"
        "The server listens on 127.0.0.1 only; the printed address contains the access token.",
        example="slicebeam serve out --open",
        options="config.adapt:ServeConfig",
        runs="commands.serve:serve",
    ),
    "export": CommandSpec(
        group="Describe",
        help="Write a ChangeList in the format of another tool.",
        example="slicebeam export tfma out --to out/tfma",
    ),
    "export tfma": CommandSpec(
        group="Tools",
        help="Write a ChangeList as an output folder of TensorFlow Model Analysis.\n\n"
        "tfma.load_eval_result, tfma.view and tfma.load_validation_result read it. Bins, lists of values and "
        "missing values become derived columns; slices.json says what they stand for.",
        example="slicebeam export tfma out --to out/tfma",
        options="commands.export:ExportTfmaConfig",
        runs="commands.export:tfma",
        shows="commands.export:show_exported",
    ),
    "adapt": CommandSpec(
        group="Test",
        help="Grow tests of a model, and see which topics an update fixed and broke.\n\n"
        "Tests are in topics, in a CSV file as AdaTest writes it.",
        example="slicebeam adapt run tests.csv --model models:new --baseline-model models:old --output out",
    ),
    "adapt run": RunCommand(
        group="Tests",
        help="Score a test tree, and report the topics that fail, and those fixed and broken.\n\n"
        "A topic with those below it is a slice of the ChangeList: with --baseline-model the two models are "
        "compared test by test (McNemar's test, Benjamini-Hochberg over all topics). Paid answers are "
        "written to the ledger before use, and are not paid twice.",
        example="slicebeam adapt run tests.csv --model models:new --baseline-model models:old "
        "--output out --fail-on worse",
        options="config.adapt:AdaptRunConfig",
        runs="adaptive.run:run_tests",
        shows="adaptive.topics_printed:show",
    ),
    "adapt suggest": CommandSpec(
        group="Tests",
        help="Propose tests of a topic, score them by a model, and write those that fail first.\n\n"
        "Templates, a pool of texts and another tree need no language model; with --endpoint one goes on with "
        "the tests of the topic. Tests that you accept into the tree steer what is proposed next.",
        example="slicebeam adapt suggest tests.csv --model models:new --topic /Negation --pool texts.txt "
        "-k 100",
        options="config.adapt:AdaptSuggestConfig",
        runs="adaptive.suggestions.suggest:suggest",
        shows="adaptive.suggestions.printed:show_suggestions",
        json="adaptive.suggestions.printed:suggestions_json",
    ),
    "adapt export-training": CommandSpec(
        group="Files",
        help="Write failing tests with the label that is right, to train on.\n\n"
        "The file has the columns of texts and labels of the data, the topic, and a weight: tests of the same "
        "text share the weight 1. Tests without a label are skipped and counted. Exported tests are marked "
        "in the tree, so that slicebeam adapt run says which topics were trained on.",
        example="slicebeam adapt export-training tests.csv --changelist out --mix train.parquet "
        "--label label --to more.parquet",
        options="config.adapt:ExportTrainingConfig",
        runs="adaptive.training:export_training",
        shows="adaptive.topics_printed:show_exported",
    ),
    "adapt from": CommandSpec(
        group="Files",
        help="Make topics of the slices that a run found, with their failing examples as tests.\n\n"
        "A test expects the label of its example. The examples that the model gets wrong come first; when two "
        "models are compared, those that the update broke.",
        example="slicebeam adapt from out --text review --to tests.csv",
        options="config.adapt:AdaptFromConfig",
        runs="adaptive.from_slices.make_tests:make_tests",
        shows="adaptive.from_slices.make_tests:show_tests",
    ),
    "adapt import-checklist": CommandSpec(
        group="Files",
        help="Write the test tree of a CheckList suite: a topic each test, a test each case.\n\n"
        "The suite is a table with the columns test, capability, type, input and label. What a test expects "
        "beyond a label is code in CheckList; say it in --expectations.",
        example="slicebeam adapt import-checklist sentiment.parquet --to sentiment.csv "
        "--expectations sentiment.yaml",
        options="config.adapt:ImportChecklistConfig",
        runs="adaptive.checklist:import_checklist",
        shows="adaptive.topics_printed:show_imported",
    ),
    "shift": DataCommand(
        group="APIs",
        help="Estimate how a paid prediction API changed, from few calls.\n\n"
        "The command writes each answer to the ledger before it uses it. When run again, it calls the API "
        "only for missing answers. A call without an answer may have been charged: 'lost_calls' in the --api "
        "file decides whether its item is sent again.",
        example="slicebeam shift pool.parquet --label label --old-prediction old --api api.yaml "
        "--budget 5USD --output out",
        options="config.shift:ShiftConfig",
        run_options="config.run_options:ShiftRunOptions",
        runs="shift.run:run_shift",
        shows="show.shift:show",
    ),
    "run": FileCommand(
        group="Run",
        help="Run the command in a file, or repeat an earlier run.\n\n"
        "Models, encoders, APIs and engines in the changelist.json of a run are not used unless you name them "
        "again, because they run code or send data. With your own file, those that you name replace the "
        "file's.",
        example="slicebeam run nightly.yaml --resume --log-format json",
        options="commands.run_file:FileConfig",
        run_options="config.run_options:FileRunOptions",
    ),
    "schema": CommandSpec(
        group="Run",
        help="Print the JSON Schema of the ChangeList.",
        example="slicebeam schema > changelist.schema.json",
        runs="commands.demo:print_schema",
    ),
    "demo": CommandSpec(
        group="Run",
        help="Search census data that ships with the package, and show the results.",
        example="slicebeam demo",
        options="commands.demo:DemoConfig",
        runs="commands.demo:run_demo",
    ),
}
# The commands that only hold others.
GROUPS = tuple(dict.fromkeys(name.split()[0] for name in COMMANDS if " " in name))


def data_command(name: str) -> DataCommand:
    """Return a command that reads data."""
    command = COMMANDS[name]
    if not isinstance(command, DataCommand):
        raise TypeError(f"{name} reads no data")
    return command
