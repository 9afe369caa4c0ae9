"""The options of the commands, each declared once; nothing of weight is imported here."""

from __future__ import annotations

from typing import Annotated

import typer

Data = Annotated[
    list[str],
    typer.Option(
        metavar="<path>",
        help="Files or globs: Parquet, CSV (.gz), JSON Lines, TFRecord. Repeatable.",
    ),
]
Output = Annotated[str, typer.Option(help="Folder for changelist.json and slices.parquet.")]
Label = Annotated[
    str | None,
    typer.Option(
        help="Column of the true class or value. Not needed with --loss, nor for mean:COLUMN."
    ),
]
LabelOfCheck = Annotated[
    str | None,
    typer.Option(help="Column of the true classes.  [default: as in --changelist]"),
]
Prediction = Annotated[
    str | None, typer.Option(help="Column of predicted classes, of the label's type.")
]
Score = Annotated[
    str | None,
    typer.Option(
        help="Column with the probability of --positive-class. Beside --prediction, which gives the "
        "classes, it is used by auc, log_loss and brier only."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="scikit-learn model (pickle, joblib) to predict with. Loading one runs the code in "
        "it: name only files that you trust."
    ),
]
BaselinePrediction = Annotated[
    str | None, typer.Option(help="The same of the old model, to compare two models.")
]
BaselineScore = Annotated[str | None, typer.Option(help="Score of the old model.")]
BaselineModel = Annotated[str | None, typer.Option(help="File of the old model.")]
Loss = Annotated[
    str | None,
    typer.Option(help="Column of each example's loss, instead of label and predictions."),
]
BaselineLoss = Annotated[str | None, typer.Option(help="The same of the old model.")]
Embedding = Annotated[
    str | None, typer.Option(help="Column of vectors that describe the examples.")
]
Text = Annotated[
    str | None,
    typer.Option(
        help="Column of texts, which are embedded; beside --embedding it shows the examples."
    ),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        help="What embeds texts: lsa (fitted to them), minilm, openai:URL of an endpoint, or "
        "module:function that returns a model handler of Beam's. Beside --embedding: what made it.  "
        "[default: lsa with --text]"
    ),
]
# Given again for what a document names: nothing of a document runs code or is sent anywhere unless
# the user says so.
ConfirmedModel = Annotated[
    str | None,
    typer.Option(help="Confirms the model in --changelist, whose code loading runs."),
]
ConfirmedBaselineModel = Annotated[
    str | None, typer.Option(help="Confirms the old model in --changelist.")
]
ConfirmedEncoder = Annotated[
    str | None,
    typer.Option(
        help="Confirms the encoder in --changelist, where it is code (module:function) or an "
        "endpoint (openai:URL) that gets your texts."
    ),
]
AllowHttp = Annotated[
    bool,
    typer.Option(
        "--allow-http",
        help="Send keys over http:// to other machines, where others can read them.",
    ),
]
GivenModel = Annotated[str | None, typer.Option(help="Model, instead of the file's.")]
GivenBaselineModel = Annotated[str | None, typer.Option(help="Old model, instead of the file's.")]
GivenEncoder = Annotated[str | None, typer.Option(help="Encoder, instead of the file's.")]
GivenApi = Annotated[str | None, typer.Option(help="File of an API, instead of the file's.")]
GivenPhrases = Annotated[str | None, typer.Option(help="File of phrases, instead of the file's.")]
GivenRunnerConfig = Annotated[str | None, typer.Option(help="Engine, instead of the file's.")]
Components = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<numbers>",
        help="Components of the mixture; several, such as 25,100, are several mixtures.  [default: 50]",
    ),
]
Dimensions = Annotated[
    int, typer.Option(help="Principal components that mixtures are fitted to, at most.")
]
LossWeight = Annotated[
    float,
    typer.Option(
        help="How much losses shape the mixture; above 0 only examples that shaped nothing are tested."
    ),
]
DiscoveryShare = Annotated[
    float, typer.Option(help="Of the examples, to shape the mixture (with --loss-weight).")
]
DescribedSlices = Annotated[
    int, typer.Option("--slices", help="Slices that are described by phrases and examples.")
]
Phrases = Annotated[
    str | None,
    typer.Option(
        metavar="<file>",
        help="Phrases to describe slices by, one a line; or a YAML file of an API whose model names "
        "some.  [default: of the texts]",
    ),
]
FeaturesOfDiscovery = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<names>",
        help="Columns to slice by beside components; repeatable or by commas.  [default: none]",
    ),
]
IdOfDiscovery = Annotated[
    str | None,
    typer.Option(
        "--example-id", "--id", help="Column that identifies an example in what is published."
    ),
]
PositiveClass = Annotated[
    str | None, typer.Option(help="The class that a score speaks of.  [default: 1 or true]")
]
Threshold = Annotated[
    float, typer.Option(help="A score of at least this predicts the positive class.")
]
Format = Annotated[
    str | None, typer.Option(help="parquet, csv, jsonl or tfrecord.  [default: by the name]")
]
ColumnNames = Annotated[
    list[str] | None,
    typer.Option(metavar="<names>", help="Columns of a CSV file without a header, by commas."),
]
SkipRows = Annotated[int, typer.Option(help="Lines before the header of a CSV file.")]
Delimiter = Annotated[
    str,
    typer.Option(
        metavar="<character>",
        help="Character between the values of a CSV file, such as ';' or tab.",
    ),
]
Features = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<names>",
        help="Columns to slice by; repeatable or by commas.  [default: all others]",
    ),
]
FeaturesOfModel = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<names>",
        help="What a --model that does not know its columns' names reads.  [default: all others]",
    ),
]
ExcludeFeatures = Annotated[
    list[str] | None,
    typer.Option(metavar="<names>", help="Columns not to slice by; repeatable or by commas."),
]
ExcludeFeaturesOfModel = Annotated[
    list[str] | None,
    typer.Option(metavar="<names>", help="What such a --model does not read."),
]
ExampleId = Annotated[
    str | None,
    typer.Option(
        help="Column that identifies an example when it is resampled.  [default: what is read of it]"
    ),
]
Weight = Annotated[str | None, typer.Option(help="Column of sampling weights, at least 0.")]
Group = Annotated[
    str | None,
    typer.Option(
        help="Column of groups of examples that go together, such as a user; groups are resampled."
    ),
]
Changelist = Annotated[
    str | None, typer.Option(help="ChangeList of an earlier run, whose slices are checked.")
]
Slices = Annotated[
    str | None,
    typer.Option(help="YAML file of predicates to check, such as '- age < 25 & sex = Female'."),
]
LabelOfShift = Annotated[str, typer.Option(help="Column of the true classes.")]
OutputOfShift = Annotated[
    str | None,
    typer.Option(
        help="Folder for changelist.json and the ledger. Required, except with --plan and --repeat, "
        "which only print."
    ),
]
IdOfShift = Annotated[
    str | None,
    typer.Option(
        help="Column that identifies an item: the ledger knows it by this value, also in changed data.  "
        "[default: its row in the data]"
    ),
]
SeedOfShift = Annotated[int, typer.Option(help="Random seed: which items are drawn.")]
WorkDirOfShift = Annotated[
    str | None, typer.Option(help="Folder for unfinished work.  [default: OUTPUT/_work]")
]
ResumeOfShift = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue a stopped run: a pool that it has read is not read again. Begin if there is none, "
        "and do nothing if it has published. Answers in the ledger are used either way.",
    ),
]
MemoryBudgetOfShift = Annotated[
    str, typer.Option(help="Memory that a worker may use while it reads the pool.")
]
AsJsonOfShift = Annotated[
    bool, typer.Option("--json", help="Print the summary, plan or measurement as JSON on stdout.")
]
OldPrediction = Annotated[
    str | None, typer.Option(help="Column of what the API predicted before, item by item.")
]
OldMatrix = Annotated[
    str | None,
    typer.Option(
        help="ChangeList of an earlier shift, whose new confusion matrix is the old one now; instead "
        "of --old-prediction."
    ),
]
Difficulty = Annotated[
    str | None,
    typer.Option(
        help="Column of a confidence, of the old API or of a cheap model; its quantile bins are strata."
    ),
]
DifficultyBins = Annotated[int, typer.Option(help="Quantile bins of --difficulty.")]
Api = Annotated[
    str | None,
    typer.Option(
        metavar="<file>",
        help="YAML file that describes the requests to the HTTP API and its answers.",
    ),
]
ModelOfShift = Annotated[
    str | None,
    typer.Option(
        help="scikit-learn model to ask instead, or module:function that returns a model handler of "
        "Beam's. Loading one runs the code in it: name only what you trust."
    ),
]
FeaturesOfShift = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<names>",
        help="Columns that --model reads, where it does not know them; repeatable or by commas.",
    ),
]
ReplayPrediction = Annotated[
    str | None, typer.Option(help="Column of recorded answers to use instead of calls.")
]
Method = Annotated[
    str | None,
    typer.Option(
        help="plus: asks where most changed, and uses the old predictions as a control variate. masa: "
        "asks where answers vary most (Chen et al., 2021; biased). proportional: strata by size. "
        "uniform: all items alike.  [default: plus with --old-prediction, else proportional]"
    ),
]
Budget = Annotated[
    str | None, typer.Option(help="Maximum number of calls, such as 2000, or money, such as 5USD.")
]
TargetError = Annotated[
    float | None,
    typer.Option(
        help="Stop when the Frobenius error of the new matrix is below this with --confidence. With "
        "--repeat: the error that calls are counted for (default 0.01)."
    ),
]
Confidence = Annotated[
    float, typer.Option(help="Confidence of the intervals and of --target-error.")
]
Price = Annotated[
    float | None,
    typer.Option(
        help="Price of a call, in the currency of the --api file or of --budget, else USD.  [default: "
        "'price' of the --api file]"
    ),
]
By = Annotated[
    str | None, typer.Option(help="Column for each of whose values to report the shift too.")
]
SlicesOfShift = Annotated[
    str | None,
    typer.Option(
        help="ChangeList of a search or check for each of whose slices to report the shift too."
    ),
]
LedgerFolder = Annotated[
    str | None,
    typer.Option(
        help="Folder that keeps every answer of --api or --model; what is in it is not asked again.  "
        "[default: OUTPUT/ledger]"
    ),
]
Plan = Annotated[
    bool,
    typer.Option(
        "--plan",
        help="Ask nothing: simulate updates of the old predictions, and print what each budget and "
        "method would give.",
    ),
]
Repeat = Annotated[
    int | None,
    typer.Option(
        help="Ask nothing: print how good the method is on --replay-prediction over so many seeds. With "
        "--plan: runs of each simulation (default 100)."
    ),
]
Replacement = Annotated[
    bool,
    typer.Option(
        "--replacement", help="Draw items with replacement, as in MASA's paper (with --repeat)."
    ),
]
FailOnShift = Annotated[
    str | None,
    typer.Option(
        help="worse: exit with 1 if the accuracy fell significantly, over all or on a slice of --by or "
        "--changelist."
    ),
]
Bins = Annotated[int, typer.Option(help="Quantile bins of a numeric column.")]
TopValues = Annotated[
    int, typer.Option(help="Values of a categorical column with a predicate of their own.")
]
Domains = Annotated[
    str | None,
    typer.Option(
        help="ChangeList of an earlier run whose bins and values to use; new values are added."
    ),
]
Metric = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<names>",
        help="accuracy, error_rate, precision, recall, f1, fbeta:2, fpr, fnr, specificity, "
        "balanced_accuracy, mcc, auc, log_loss, brier, mse, mae, bias, prediction_rate, label_rate, "
        "loss, mean:COLUMN, precision_macro, recall_macro, f1_macro (or _micro); repeatable, the "
        "first steers.  [default: accuracy, loss with --loss]",
    ),
]
Compare = Annotated[
    str | None,
    typer.Option(help="overall or baseline.  [default: baseline if an old model is given]"),
]
Alternative = Annotated[str, typer.Option(help="worse, better or both.")]
Test = Annotated[
    str,
    typer.Option(
        help="auto: the metric's own, calibrated, also for small slices. bootstrap-rows, "
        "bootstrap-cells: t over Poisson replicates of examples, or of counts. permutation: random "
        "subsets. paper, paper-cells: AutoSlicer's t over 20 replicates, with its settings (alpha "
        "0.01, no correction, size 1)."
    ),
]
Replicates = Annotated[
    int | None,
    typer.Option(help="Bootstrap replicates.  [default: 200 of rows, 1000 of cells, 20 for paper]"),
]
Correction = Annotated[
    str | None,
    typer.Option(help="fdr-level, fwer-level, fwer-tarone, bh, by, none.  [default: fdr-level]"),
]
Alpha = Annotated[float | None, typer.Option(help="Level.  [default: 0.05]")]
MinSliceSize = Annotated[
    int | None, typer.Option(help="Smallest slice that is tested.  [default: 20]")
]
MaxCrossSize = Annotated[int, typer.Option(help="Most predicates of a slice.")]
Strategy = Annotated[
    str | None,
    typer.Option(
        help="batch, iterative or priority.  [default: batch, priority above 10 million "
        "conjunctions]"
    ),
]
Iterations = Annotated[int, typer.Option(help="Iterations of --strategy priority.")]
MaxCandidates = Annotated[
    int, typer.Option(help="Candidates of an iteration of --strategy priority.")
]
KeepRefining = Annotated[
    bool, typer.Option("--keep-refining", help="Also visit slices below significant ones.")
]
SaveSlices = Annotated[
    str | None,
    typer.Option(help="tested or significant.  [default: tested up to a million slices]"),
]
Since = Annotated[
    str | None,
    typer.Option(
        help="ChangeList of an earlier run: what is new, gone, worse or better since. Its bins and "
        "values are used, unless others are asked for."
    ),
]
SinceIfExists = Annotated[
    str | None,
    typer.Option(help="The same, but the first run, without an earlier one, is no error."),
]
FailOn = Annotated[
    str | None,
    typer.Option(
        help="worse: exit with 1 if any metric is significantly worse on a slice or, with --since, over "
        "all examples; with 2 if some metric could not be tested on any slice."
    ),
]
Explain = Annotated[
    str | None,
    typer.Option(
        metavar="<slice>", help="Say how this slice (id or text) was tested, with all numbers."
    ),
]
Seed = Annotated[int, typer.Option(help="Of whatever is drawn at random.")]
WorkDir = Annotated[
    str | None, typer.Option(help="Folder for what is unfinished.  [default: OUTPUT/_work]")
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on where a stopped run was; begin if there is none, and do nothing if it has published.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Send nothing: print the jobs, their options and what they would cost.",
    ),
]
SingleJob = Annotated[
    bool,
    typer.Option(
        "--single-job",
        help="Send the search as one job, which publishes even if this command ends (batch only).",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        metavar="<folder>",
        help="Write a classic Dataflow template of the search (batch only) to a gs:// folder, or to a "
        "local one to look at it, and do not run it.",
    ),
]
MemoryBudget = Annotated[str, typer.Option(help="Memory that a worker may use for tables.")]
ChunkRows = Annotated[int, typer.Option(help="Most examples that are read at a time.")]
RunnerConfig = Annotated[
    str,
    typer.Option(
        help="Engine: direct, direct_multi, prism, flink, spark, dataflow, or a YAML file."
    ),
]
RunnerOption = Annotated[
    list[str] | None,
    typer.Option(metavar="<key=value>", help="Option of the engine. Repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
LogFormat = Annotated[
    str,
    typer.Option(help="text, or json: a JSON object a line on stderr, for schedulers."),
]
