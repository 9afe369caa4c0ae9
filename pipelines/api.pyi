# Written by `python -m slicebeam.pipelines.python.signatures` from the options; do not edit.
# ruff: noqa: A002, N801, PYI021
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from slicebeam.pipelines.adaptive.checklist import ImportedSuite
from slicebeam.pipelines.adaptive.from_slices.make_tests import SliceTests
from slicebeam.pipelines.adaptive.suggestions.suggest import Suggestions
from slicebeam.pipelines.adaptive.training import TrainingExport
from slicebeam.pipelines.attribution.session import Finished, Sampled, Stopped
from slicebeam.pipelines.changelist.discovered import Edit
from slicebeam.pipelines.define.new_slices import Revision
from slicebeam.pipelines.python.find_slices import FindSlices as FindSlices
from slicebeam.pipelines.python.python_runs import Report as Report
from slicebeam.pipelines.run.published import Published
from slicebeam.pipelines.tfma.export import Exported

StrPath: TypeAlias = str | os.PathLike[str]

def search(
    data: Any,
    /,
    *,
    output: StrPath | None = None,
    format: Literal["parquet", "csv", "jsonl", "tfrecord"] | None = None,
    column_names: str | Sequence[str] = (),
    skip_rows: int = 0,
    delimiter: str = ",",
    example_id: str | None = None,
    weight: str | None = None,
    group: str | None = None,
    query: str | None = None,
    eval_config: StrPath | None = None,
    label: str = "",
    prediction: str | None = None,
    score: str | None = None,
    model: str | None = None,
    model_inputs: str | Sequence[str] = (),
    baseline_prediction: str | None = None,
    baseline_score: str | None = None,
    baseline_model: str | None = None,
    loss: str | None = None,
    baseline_loss: str | None = None,
    positive_class: str | float | None = None,
    score_classes: str | Sequence[str] = (),
    threshold: float = 0.5,
    features: str | Sequence[str] = (),
    exclude_features: str | Sequence[str] = (),
    bins: int = 10,
    exact_edges: bool = False,
    top_values: int = 100,
    domains: StrPath | None = None,
    keep_outputs: bool = False,
    metric: str | Sequence[str] = ("accuracy",),
    compare: Literal["overall", "baseline"] | None = None,
    alternative: Literal["worse", "better", "both"] = "worse",
    seed: int = 0,
    tfma_module: str | Sequence[str] = (),
    test: Literal["auto", "bootstrap-rows", "paper"] = "auto",
    replicates: int | None = None,
    correction: Literal["fdr-level", "fwer-level", "bh", "by", "none"] | None = None,
    alpha: float | None = None,
    min_slice_size: int | None = None,
    parity: str | Sequence[str] = (),
    confirm: float | None = None,
    max_cross_size: int = 3,
    strategy: Literal["batch", "iterative", "priority"] | None = None,
    iterations: int = 5,
    max_candidates: int | None = 50000,
    prune_significant: bool = False,
    since: StrPath | None = None,
    since_if_exists: StrPath | None = None,
    save_slices: Literal["tested", "significant"] | None = None,
    explain: str | None = None,
    runner_config: str = "direct",
    runner_option: str | Sequence[str] | Mapping[str, object] = (),
    resume: bool = False,
    work_dir: StrPath | None = None,
    memory_budget: str = "512MB",
    chunk_rows: int = 262144,
    progress: bool = False,
) -> Report:
    """Find the slices where a model is worse, or became worse.

    Parameters
    ----------
    data : a table of pandas, polars or Arrow, or paths or globs of files
    output : Folder for changelist.json and slices.parquet.
    format : Format: parquet, csv, jsonl or tfrecord. By default from the file's name.
    column_names : Columns of a CSV file without a header, separated by commas.
    skip_rows : Lines to skip before the header of a CSV file.
    delimiter : Character between the values of a CSV file, such as ';' or tab.
    example_id : Column that identifies an example when examples are resampled. By default the columns that are read.
    weight : Column of sampling weights (0 or more).
    group : Column of groups of examples that belong together, such as a user's. Whole groups are resampled.
    query : Column of the query of each row, for metrics of rankings such as ndcg:10, where a row has one `label` (relevance) and `score`. The queries are then the examples.
    eval_config : EvalConfig of TensorFlow Model Analysis (text or JSON), which gives models, metrics and sizes. A check also uses its slices and thresholds, and exits with 1 if a threshold fails. Needs the extra tfma.
    label : Column of the true class or value. Not needed with `loss` or for mean:COLUMN.
    prediction : Column of predicted classes or values, of the label's type.
    score : Column with the probability of `positive_class`. With `prediction`, which gives the classes, only metrics of scores, such as auc, use it. For log_loss_multiclass, brier_multiclass and top_k_accuracy:3 a list of the scores of all classes, or a column for each: p_yes,p_no. For ndcg:10 a list of the scores of the results of a query, or with `query` a number.
    model : Model to predict with: of scikit-learn (pickle, joblib), a TensorFlow SavedModel (folder), ONNX, or module:function of Python. Loading one runs the code in it: name only what you trust.
    model_inputs : Columns that a model takes that does not name them itself, in its order, for both models. By default the features.
    baseline_prediction : Column of the old model's predictions, to compare two models.
    baseline_score : Column of the old model's scores.
    baseline_model : The old model. Loading it runs the code in it, as for `model`.
    loss : Column of each example's loss, instead of label and predictions.
    baseline_loss : Column of the old model's losses.
    positive_class : Class whose probability is the score. By default 1 or true.
    score_classes : Classes of a `score` that is a list with a number for each of them, or a column for each, in its order. Columns name them by default: what follows their common beginning, up to a _. By default labels are 0, 1, ….
    threshold : Smallest score, or probability by `model`, that predicts the positive class.
    features : Columns to slice by. One or several. By default all others.
    exclude_features : Columns not to slice by. One or several.
    bins : Quantile bins of a numeric column.
    exact_edges : Use values of the data as the edges of bins, not round numbers.
    top_values : Values of a categorical column that get a predicate of their own.
    domains : ChangeList of an earlier run whose bins and values to use. New values are added.
    keep_outputs : Slice by columns named like a model's output (score_old, y_pred).
    metric : Metrics: accuracy, error_rate, precision, recall, f1, fbeta:2, fpr, fnr, specificity, npv, balanced_accuracy, mcc, kappa, auc, average_precision, log_loss, brier, calibration_in_the_large, calibration_error:10, recall_at_fpr:0.05, mse, rmse, r2, mae, bias, mape, smape, pinball:0.9, poisson_deviance, prediction_rate, label_rate, disagreement, loss, mean:COLUMN, precision_macro, recall_macro, f1_macro (or _micro), balanced_accuracy_multiclass, mcc_multiclass, top_k_accuracy:3, log_loss_multiclass, brier_multiclass, jaccard, hamming, ndcg:10, map:10, mrr, precision_at:10. module:Name is your own Metric, as is a name that an installed package registers; importing it runs its code. tfma:NAME(argument=value) is a metric of TensorFlow Model Analysis, computed after the search for the slices it found. One or several; the first one steers the search. By default accuracy; loss with `loss`.
    compare : What a slice is compared with: overall (all examples) or baseline (the old model). By default baseline if an old model is given.
    alternative : Direction of the change to find: worse, better or both.
    seed : Random seed.
    tfma_module : Module of your own TFMA metrics, which `metric` or `eval_config` names. Importing it runs its code. One or several.
    test : auto: the metric's own test, calibrated for small slices too. bootstrap-rows: t over Poisson replicates of the examples. paper: AutoSlicer's t over 20 replicates, with its settings (alpha 0.01, no correction, size 1).
    replicates : Number of bootstrap replicates. By default 200, 20 for paper.
    correction : Correction for testing many slices: fdr-level, fwer-level, bh, by or none. By default fdr-level.
    alpha : Significance level. By default 0.05.
    min_slice_size : Smallest slice to test, in examples. By default 20.
    parity : Columns of groups, such as sex, to compare in prediction rate, true and false positive rate and accuracy: the largest gap of each. One or several.
    confirm : Share of the examples to reserve for measuring the findings. The others are searched.
    max_cross_size : Maximum number of predicates in a slice.
    strategy : batch: every conjunction. iterative: level by level. priority: the most promising ones. By default batch; priority where that is estimated to take more than a minute.
    iterations : Iterations of `strategy` priority.
    max_candidates : Maximum number of candidates in an iteration of `strategy` priority.
    prune_significant : Visit no slices within significant slices, as AutoSlicer does.
    since : ChangeList of an earlier run, to report what is new, gone, worse or better since. Its bins and values are used unless you choose others.
    since_if_exists : Like `since`, but a missing file is not an error. For the first of a series of runs.
    save_slices : Slices to write into slices.parquet: tested or significant. By default tested, up to a million slices.
    explain : Slice (id or text) whose test to explain, with all numbers.
    runner_config : Engine: direct, direct_multi, prism, flink, spark, dataflow, or a YAML file.
    runner_option : Option of the engine. One or several.
    resume : Continue a stopped run. Start it if there is none; do nothing if it has published its result.
    work_dir : Folder for unfinished work. By default OUTPUT/_work.
    memory_budget : Memory that each worker may use for tables.
    chunk_rows : Maximum number of examples to read at a time.
    progress : print progress and notes on stderr

    Raises
    ------
    InputError
        An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
    EngineError
        The engine, an API or the storage (`StorageError`) failed.
    """

def discover(
    data: Any,
    /,
    *,
    output: StrPath | None = None,
    format: Literal["parquet", "csv", "jsonl", "tfrecord"] | None = None,
    column_names: str | Sequence[str] = (),
    skip_rows: int = 0,
    delimiter: str = ",",
    example_id: str | None = None,
    weight: str | None = None,
    group: str | None = None,
    query: str | None = None,
    eval_config: StrPath | None = None,
    within_findings: StrPath | None = None,
    embedding: str | None = None,
    text: str | None = None,
    encoder: str | None = None,
    components: int | Sequence[int] | str = (50,),
    dimensions: int = 128,
    loss_weight: float = 0.0,
    discovery_share: float = 0.7,
    slices: int = 10,
    phrases: StrPath | None = None,
    label: str = "",
    prediction: str | None = None,
    score: str | None = None,
    model: str | None = None,
    model_inputs: str | Sequence[str] = (),
    baseline_prediction: str | None = None,
    baseline_score: str | None = None,
    baseline_model: str | None = None,
    loss: str | None = None,
    baseline_loss: str | None = None,
    positive_class: str | float | None = None,
    score_classes: str | Sequence[str] = (),
    threshold: float = 0.5,
    features: str | Sequence[str] = (),
    bins: int = 10,
    exact_edges: bool = False,
    top_values: int = 100,
    metric: str | Sequence[str] = ("accuracy",),
    compare: Literal["overall", "baseline"] | None = None,
    alternative: Literal["worse", "better", "both"] = "both",
    seed: int = 0,
    test: Literal["auto", "bootstrap-rows", "paper"] = "auto",
    replicates: int | None = None,
    correction: Literal["fdr-level", "fwer-level", "bh", "by", "none"] | None = None,
    alpha: float | None = None,
    min_slice_size: int | None = None,
    max_cross_size: int = 1,
    strategy: Literal["batch", "iterative", "priority"] | None = None,
    iterations: int = 5,
    max_candidates: int | None = 50000,
    prune_significant: bool = False,
    save_slices: Literal["tested", "significant"] | None = None,
    explain: str | None = None,
    runner_config: str = "direct",
    runner_option: str | Sequence[str] | Mapping[str, object] = (),
    resume: bool = False,
    work_dir: StrPath | None = None,
    memory_budget: str = "512MB",
    chunk_rows: int = 262144,
    allow_http: bool = False,
    progress: bool = False,
) -> Report:
    """Find the groups of texts or images where a model changed.

    Anything that has embeddings can be grouped. With one model, the command finds the groups where it is worse than elsewhere.

    A mixture over the embeddings gives each example a component. Components are then searched, tested and corrected like any other feature.

    Parameters
    ----------
    data : a table of pandas, polars or Arrow, or paths or globs of files
    output : Folder for changelist.json and slices.parquet.
    format : Format: parquet, csv, jsonl or tfrecord. By default from the file's name.
    column_names : Columns of a CSV file without a header, separated by commas.
    skip_rows : Lines to skip before the header of a CSV file.
    delimiter : Character between the values of a CSV file, such as ';' or tab.
    example_id : Column that identifies an example in the result.
    weight : Column of sampling weights (0 or more).
    group : Column of groups of examples that belong together, such as a user's. Whole groups are resampled.
    query : Column of the query of each row, for metrics of rankings such as ndcg:10, where a row has one `label` (relevance) and `score`. The queries are then the examples.
    eval_config : EvalConfig of TensorFlow Model Analysis (text or JSON), which gives models, metrics and sizes. A check also uses its slices and thresholds, and exits with 1 if a threshold fails. Needs the extra tfma.
    within_findings : ChangeList of a search. Only the examples in at least one of its findings are read.
    embedding : Column of embeddings: a vector for each example.
    text : Column of texts to embed. With `embedding`, the texts are only displayed.
    encoder : Encoder of texts: lsa (fitted to them), minilm, openai:URL (an endpoint), or module:function (which returns a Beam model handler). With `embedding`, the encoder that made the vectors. By default lsa with `text`.
    components : Number of components of the mixture. Several numbers, such as 25,100, fit several mixtures. By default 50.
    dimensions : Maximum number of principal components to which mixtures are fitted.
    loss_weight : Weight of the losses in the fit of the mixture. Above 0, only examples outside the fit are tested.
    discovery_share : Share of the examples that the mixture is fitted to, with `loss_weight`.
    slices : Number of slices to describe by phrases and examples.
    phrases : File of phrases that may describe slices, one per line; or YAML file of an API whose model suggests phrases. By default taken from the texts.
    label : Column of the true class or value. Not needed with `loss` or for mean:COLUMN.
    prediction : Column of predicted classes or values, of the label's type.
    score : Column with the probability of `positive_class`. With `prediction`, which gives the classes, only metrics of scores, such as auc, use it. For log_loss_multiclass, brier_multiclass and top_k_accuracy:3 a list of the scores of all classes, or a column for each: p_yes,p_no. For ndcg:10 a list of the scores of the results of a query, or with `query` a number.
    model : Model to predict with: of scikit-learn (pickle, joblib), a TensorFlow SavedModel (folder), ONNX, or module:function of Python. Loading one runs the code in it: name only what you trust.
    model_inputs : Columns that a model takes that does not name them itself, in its order, for both models. By default the features.
    baseline_prediction : Column of the old model's predictions, to compare two models.
    baseline_score : Column of the old model's scores.
    baseline_model : The old model. Loading it runs the code in it, as for `model`.
    loss : Column of each example's loss, instead of label and predictions.
    baseline_loss : Column of the old model's losses.
    positive_class : Class whose probability is the score. By default 1 or true.
    score_classes : Classes of a `score` that is a list with a number for each of them, or a column for each, in its order. Columns name them by default: what follows their common beginning, up to a _. By default labels are 0, 1, ….
    threshold : Smallest score, or probability by `model`, that predicts the positive class.
    features : Columns to slice by, besides components. One or several. By default none.
    bins : Quantile bins of a numeric column.
    exact_edges : Use values of the data as the edges of bins, not round numbers.
    top_values : Values of a categorical column that get a predicate of their own.
    metric : Metrics: accuracy, error_rate, precision, recall, f1, fbeta:2, fpr, fnr, specificity, npv, balanced_accuracy, mcc, kappa, auc, average_precision, log_loss, brier, calibration_in_the_large, calibration_error:10, recall_at_fpr:0.05, mse, rmse, r2, mae, bias, mape, smape, pinball:0.9, poisson_deviance, prediction_rate, label_rate, disagreement, loss, mean:COLUMN, precision_macro, recall_macro, f1_macro (or _micro), balanced_accuracy_multiclass, mcc_multiclass, top_k_accuracy:3, log_loss_multiclass, brier_multiclass, jaccard, hamming, ndcg:10, map:10, mrr, precision_at:10. module:Name is your own Metric, as is a name that an installed package registers; importing it runs its code. tfma:NAME(argument=value) is a metric of TensorFlow Model Analysis, computed after the search for the slices it found. One or several; the first one steers the search. By default accuracy; loss with `loss`.
    compare : What a slice is compared with: overall (all examples) or baseline (the old model). By default baseline if an old model is given.
    alternative : Direction of the change to find: worse, better or both.
    seed : Random seed.
    test : auto: the metric's own test, calibrated for small slices too. bootstrap-rows: t over Poisson replicates of the examples. paper: AutoSlicer's t over 20 replicates, with its settings (alpha 0.01, no correction, size 1).
    replicates : Number of bootstrap replicates. By default 200, 20 for paper.
    correction : Correction for testing many slices: fdr-level, fwer-level, bh, by or none. By default fdr-level.
    alpha : Significance level. By default 0.05.
    min_slice_size : Smallest slice to test, in examples. By default 20.
    max_cross_size : Maximum number of predicates in a slice.
    strategy : batch: every conjunction. iterative: level by level. priority: the most promising ones. By default batch; priority where that is estimated to take more than a minute.
    iterations : Iterations of `strategy` priority.
    max_candidates : Maximum number of candidates in an iteration of `strategy` priority.
    prune_significant : Visit no slices within significant slices, as AutoSlicer does.
    save_slices : Slices to write into slices.parquet: tested or significant. By default tested, up to a million slices.
    explain : Slice (id or text) whose test to explain, with all numbers.
    runner_config : Engine: direct, direct_multi, prism, flink, spark, dataflow, or a YAML file.
    runner_option : Option of the engine. One or several.
    resume : Continue a stopped run. Start it if there is none; do nothing if it has published its result.
    work_dir : Folder for unfinished work. By default OUTPUT/_work.
    memory_budget : Memory that each worker may use for tables.
    chunk_rows : Maximum number of examples to read at a time.
    allow_http : Send keys over http:// to other machines, where others can read them.
    progress : print progress and notes on stderr

    Raises
    ------
    InputError
        An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
    EngineError
        The engine, an API or the storage (`StorageError`) failed.
    """

def check(
    data: Any,
    /,
    *,
    output: StrPath | None = None,
    format: Literal["parquet", "csv", "jsonl", "tfrecord"] | None = None,
    column_names: str | Sequence[str] = (),
    skip_rows: int = 0,
    delimiter: str = ",",
    example_id: str | None = None,
    weight: str | None = None,
    group: str | None = None,
    query: str | None = None,
    eval_config: StrPath | None = None,
    changelist: StrPath | None = None,
    slices: StrPath | None = None,
    encoder: str | None = None,
    label: str = "",
    prediction: str | None = None,
    score: str | None = None,
    model: str | None = None,
    model_inputs: str | Sequence[str] = (),
    baseline_prediction: str | None = None,
    baseline_score: str | None = None,
    baseline_model: str | None = None,
    loss: str | None = None,
    baseline_loss: str | None = None,
    positive_class: str | float | None = None,
    score_classes: str | Sequence[str] = (),
    threshold: float = 0.5,
    features: str | Sequence[str] = (),
    exclude_features: str | Sequence[str] = (),
    metric: str | Sequence[str] = ("accuracy",),
    compare: Literal["overall", "baseline"] | None = None,
    alternative: Literal["worse", "better", "both"] = "worse",
    seed: int = 0,
    tfma_module: str | Sequence[str] = (),
    test: Literal["auto", "bootstrap-rows", "paper"] = "auto",
    replicates: int | None = None,
    correction: Literal["fdr-level", "fwer-level", "bh", "by", "none"] | None = None,
    alpha: float | None = None,
    min_slice_size: int | None = None,
    since: StrPath | None = None,
    since_if_exists: StrPath | None = None,
    explain: str | None = None,
    runner_config: str = "direct",
    runner_option: str | Sequence[str] | Mapping[str, object] = (),
    resume: bool = False,
    work_dir: StrPath | None = None,
    memory_budget: str = "512MB",
    chunk_rows: int = 262144,
    allow_http: bool = False,
    progress: bool = False,
) -> Report:
    """Test known slices on new data, without a search.

    The slices come from an earlier run (`changelist`), from a file of predicates (`slices`) or from an EvalConfig of TensorFlow Model Analysis (`eval_config`).

    With `changelist`, options that you leave out are taken from that run: label, prediction, metric, test and so on.

    Parameters
    ----------
    data : a table of pandas, polars or Arrow, or paths or globs of files
    output : Folder for changelist.json and slices.parquet.
    format : Format: parquet, csv, jsonl or tfrecord. By default from the file's name.
    column_names : Columns of a CSV file without a header, separated by commas.
    skip_rows : Lines to skip before the header of a CSV file.
    delimiter : Character between the values of a CSV file, such as ';' or tab.
    example_id : Column that identifies an example when examples are resampled. By default the columns that are read.
    weight : Column of sampling weights (0 or more).
    group : Column of groups of examples that belong together, such as a user's. Whole groups are resampled.
    query : Column of the query of each row, for metrics of rankings such as ndcg:10, where a row has one `label` (relevance) and `score`. The queries are then the examples.
    eval_config : EvalConfig of TensorFlow Model Analysis (text or JSON), which gives models, metrics and sizes. A check also uses its slices and thresholds, and exits with 1 if a threshold fails. Needs the extra tfma.
    changelist : ChangeList of an earlier run, whose slices to check.
    slices : YAML file of predicates to check, such as '- age < 25 & sex = Female'.
    encoder : Encoder in `changelist`, to confirm it. Needed if it is code (module:function) or an endpoint (openai:URL) that receives your texts.
    label : Column of the true class or value. By default as in `changelist`.
    prediction : Column of predicted classes or values, of the label's type.
    score : Column with the probability of `positive_class`. With `prediction`, which gives the classes, only metrics of scores, such as auc, use it. For log_loss_multiclass, brier_multiclass and top_k_accuracy:3 a list of the scores of all classes, or a column for each: p_yes,p_no. For ndcg:10 a list of the scores of the results of a query, or with `query` a number.
    model : Model to predict with: of scikit-learn (pickle, joblib), a TensorFlow SavedModel (folder), ONNX, or module:function of Python. Loading one runs the code in it: name only what you trust.
    model_inputs : Columns that a model takes that does not name them itself, in its order, for both models. By default the features.
    baseline_prediction : Column of the old model's predictions, to compare two models.
    baseline_score : Column of the old model's scores.
    baseline_model : The old model. Loading it runs the code in it, as for `model`.
    loss : Column of each example's loss, instead of label and predictions.
    baseline_loss : Column of the old model's losses.
    positive_class : Class whose probability is the score. By default 1 or true.
    score_classes : Classes of a `score` that is a list with a number for each of them, or a column for each, in its order. Columns name them by default: what follows their common beginning, up to a _. By default labels are 0, 1, ….
    threshold : Smallest score, or probability by `model`, that predicts the positive class.
    features : Columns that `model` reads, if the model does not know their names. One or several. By default all others.
    exclude_features : Columns that `model` does not read, if the model does not know the names of its columns. One or several.
    metric : Metrics: accuracy, error_rate, precision, recall, f1, fbeta:2, fpr, fnr, specificity, npv, balanced_accuracy, mcc, kappa, auc, average_precision, log_loss, brier, calibration_in_the_large, calibration_error:10, recall_at_fpr:0.05, mse, rmse, r2, mae, bias, mape, smape, pinball:0.9, poisson_deviance, prediction_rate, label_rate, disagreement, loss, mean:COLUMN, precision_macro, recall_macro, f1_macro (or _micro), balanced_accuracy_multiclass, mcc_multiclass, top_k_accuracy:3, log_loss_multiclass, brier_multiclass, jaccard, hamming, ndcg:10, map:10, mrr, precision_at:10. module:Name is your own Metric, as is a name that an installed package registers; importing it runs its code. tfma:NAME(argument=value) is a metric of TensorFlow Model Analysis, computed after the search for the slices it found. One or several; the first one steers the search. By default accuracy; loss with `loss`.
    compare : What a slice is compared with: overall (all examples) or baseline (the old model). By default baseline if an old model is given.
    alternative : Direction of the change to find: worse, better or both.
    seed : Random seed.
    tfma_module : Module of your own TFMA metrics, which `metric` or `eval_config` names. Importing it runs its code. One or several.
    test : auto: the metric's own test, calibrated for small slices too. bootstrap-rows: t over Poisson replicates of the examples. paper: AutoSlicer's t over 20 replicates, with its settings (alpha 0.01, no correction, size 1).
    replicates : Number of bootstrap replicates. By default 200, 20 for paper.
    correction : Correction for testing many slices: fdr-level, fwer-level, bh, by or none. By default fdr-level.
    alpha : Significance level. By default 0.05.
    min_slice_size : Smallest slice to test, in examples. By default 20.
    since : ChangeList of an earlier run, to report what is new, gone, worse or better since. Its bins and values are used unless you choose others.
    since_if_exists : Like `since`, but a missing file is not an error. For the first of a series of runs.
    explain : Slice (id or text) whose test to explain, with all numbers.
    runner_config : Engine: direct, direct_multi, prism, flink, spark, dataflow, or a YAML file.
    runner_option : Option of the engine. One or several.
    resume : Continue a stopped run. Start it if there is none; do nothing if it has published its result.
    work_dir : Folder for unfinished work. By default OUTPUT/_work.
    memory_budget : Memory that each worker may use for tables.
    chunk_rows : Maximum number of examples to read at a time.
    allow_http : Send keys over http:// to other machines, where others can read them.
    progress : print progress and notes on stderr

    Raises
    ------
    InputError
        An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
    EngineError
        The engine, an API or the storage (`StorageError`) failed.
    """

def define(
    changelist: StrPath,
    /,
    *,
    name: str,
    data: StrPath | Sequence[StrPath] = (),
    where: str | None = None,
    text_filter: str | None = None,
    threshold: float | None = None,
    ids: StrPath | None = None,
    classifier: StrPath | None = None,
    llm_filter: str | None = None,
    llm: StrPath | None = None,
    budget: int | None = None,
    text: str | None = None,
    encoder: str | None = None,
    model: StrPath | None = None,
    baseline_model: StrPath | None = None,
    metric: str | Sequence[str] = (),
    runner_config: str = "direct",
    runner_option: str | Sequence[str] | Mapping[str, object] = (),
    allow_http: bool = False,
    progress: bool = False,
) -> Revision:
    """Define a slice by hand: with words, a predicate, ids, labels or a language model.

    The command counts the slice on the data and adds it to a new revision of the ChangeList, in the same folder. `llm_filter` calls a language model for every example.

    Parameters
    ----------
    changelist : a ChangeList, or its folder for the last revision
    name : Name of the slice.
    data : Files or globs of the examples. One or several. By default as in the ChangeList.
    where : Examples that satisfy a predicate, such as 'age < 25 & sex = Female'.
    text_filter : Examples whose embedding is similar to that of this text.
    threshold : Smallest cosine similarity for `text_filter`. By default mean + 2 standard deviations of the similarities of all examples.
    ids : Examples with the ids in this file: one a line, CSV or JSON Lines.
    classifier : Examples that a classifier selects: a logistic regression on embeddings, trained on this CSV of id and label (yes, no).
    llm_filter : Examples for which a language model answers yes to this prompt. {text} stands for the text of the example. It works best after a few answered examples.
    llm : YAML file that describes the language model's API, as for shift `api`. {prompt} stands for the prompt.
    budget : Maximum number of calls for `llm_filter`, including those of earlier runs.
    text : Column of the texts for `llm_filter`. By default as in `changelist`.
    encoder : Confirms the encoder in the ChangeList, where it is code (module:function) or an endpoint (openai:URL) that gets your texts.
    model : Confirms the model in the ChangeList. Loading it runs the code in it.
    baseline_model : Confirms the old model in the ChangeList.
    metric : Confirms the metrics in the ChangeList, where one is your own (module:Name, or of an installed package). Importing it runs its code. One or several.
    runner_config : Engine: direct, direct_multi, prism, flink, spark, dataflow, or a YAML file.
    runner_option : Option of the engine. One or several.
    allow_http : Send keys over http:// to other machines, where others can read them.
    progress : print progress and notes on stderr

    Raises
    ------
    InputError
        An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
    EngineError
        The engine, an API or the storage (`StorageError`) failed.
    """

def show(
    changelist: StrPath,
    /,
    *,
    data: StrPath | Sequence[StrPath] = (),
    encoder: str | None = None,
    slice: str | None = None,
    words: str | None = None,
    text: str | None = None,
    limit: int = 20,
    allow_http: bool = False,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Print the slices of a ChangeList, or the examples of a slice.

    With `text`, those that are nearest to a text come first: the encoder of the discovery embeds both.

    Parameters
    ----------
    changelist : a ChangeList, or its folder for the last revision
    data : Files or globs of the examples. One or several. By default as in the ChangeList.
    encoder : Confirms the encoder in the ChangeList, where it is code (module:function) or an endpoint (openai:URL) that gets your texts.
    slice : Slice whose examples are shown, given by its slice_id, the start of its slice_id, or its name.
    words : Only slices with all of these words, joined by &, in their names, descriptions, notes, phrases or attributed words.
    text : Text that slices are ordered by: the cosine similarity of the mean embedding of their examples to that of the text. With `slice`, that of each example.
    limit : Maximum number of slices or examples.
    allow_http : Send keys over http:// to other machines, where others can read them.
    progress : print progress and notes on stderr

    Raises
    ------
    InputError
        An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
    EngineError
        The engine, an API or the storage (`StorageError`) failed.
    """

def report(
    changelist: StrPath,
    /,
    *,
    examples: int = 0,
    data: StrPath | Sequence[StrPath] = (),
    progress: bool = False,
) -> str:
    """Write a page that shows a result: report.html, in the folder of the ChangeList.

    The page is one file. It opens in a browser from a disk or an email, and needs no network. It contains examples only with `examples`.

    Parameters
    ----------
    changelist : a ChangeList, or its folder for the last revision
    examples : Number of examples of each finding to include. The page then contains your data.
    data : Files or globs of the examples, on this machine. One or several. By default as in the ChangeList.
    progress : print progress and notes on stderr

    Raises
    ------
    InputError
        An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
    EngineError
        The engine, an API or the storage (`StorageError`) failed.
    """

def shift(
    data: Any,
    /,
    *,
    label: str,
    format: Literal["parquet", "csv", "jsonl", "tfrecord"] | None = None,
    column_names: str | Sequence[str] = (),
    skip_rows: int = 0,
    delimiter: str = ",",
    example_id: str | None = None,
    old_prediction: str | None = None,
    old_matrix: StrPath | None = None,
    api: StrPath | None = None,
    model: str | None = None,
    features: str | Sequence[str] = (),
    replay_prediction: str | None = None,
    budget: str | float | None = None,
    target_error: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    difficulty: str | None = None,
    bins: int = 3,
    method: Literal["plus", "masa", "proportional"] | None = None,
    focus: str | None = None,
    price: float | None = None,
    by: str | None = None,
    changelist: StrPath | None = None,
    output: StrPath | None = None,
    ledger: StrPath | None = None,
    runner_config: str = "direct",
    runner_option: str | Sequence[str] | Mapping[str, object] = (),
    resume: bool = False,
    work_dir: StrPath | None = None,
    memory_budget: str = "512MB",
    chunk_rows: int = 262144,
    allow_http: bool = False,
    progress: bool = False,
) -> Report:
    """Estimate how a paid prediction API changed, from few calls.

    The command writes each answer to the ledger before it uses it. When run again, it calls the API only for missing answers. A call without an answer may have been charged: 'lost_calls' in the `api` file decides whether its item is sent again.

    Parameters
    ----------
    data : a table of pandas, polars or Arrow, or paths or globs of files
    label : Column of the true classes.
    format : Format: parquet, csv, jsonl or tfrecord. By default from the file's name.
    column_names : Columns of a CSV file without a header, separated by commas.
    skip_rows : Lines to skip before the header of a CSV file.
    delimiter : Character between the values of a CSV file, such as ';' or tab.
    example_id : Column that identifies an item. The ledger finds the item by this value, even if the data changes. By default its row in the data.
    old_prediction : Column of the API's earlier predictions.
    old_matrix : ChangeList of an earlier shift, whose new confusion matrix is the old one of this run. Replaces `old_prediction`.
    api : YAML file that describes the requests to the HTTP API and its answers.
    model : scikit-learn model to call instead of an API, or module:function that returns a Beam model handler. Loading a model runs the code in it: give only what you trust.
    features : Columns that `model` reads, if the model does not know their names. One or several.
    replay_prediction : Column of recorded answers to use instead of calls.
    budget : Maximum number of calls, such as 2000, or amount of money, such as 5USD.
    target_error : Stop when the Frobenius error of the new matrix is below this value, with `confidence`. With `repeat`: the error whose number of calls is reported (default 0.01).
    confidence : Confidence of the intervals and of `target_error`.
    seed : Random seed for drawing items.
    difficulty : Column of confidence values, from the old API or a cheap model. Its quantile bins are strata.
    bins : Number of quantile bins of `difficulty`.
    method : plus: sample most where most changed, with the old predictions as a control variate. masa: sample most where answers vary most (Chen et al., 2021; biased). proportional: strata by size. By default plus with `old_prediction`, else proportional.
    focus : What counts: accuracy (the right predictions), one cell LABEL:PREDICTION, or a table of the columns label, prediction and weight. Calls go where its error is largest; `target_error` and `fail_on` judge it alone. By default all cells alike.
    price : Price of a call, in the currency of the `api` file or of `budget`, otherwise USD. By default 'price' of the `api` file.
    by : Column whose values are slices, to report the shift of each too.
    changelist : ChangeList of a search or check, to report the shift of each of its slices too.
    output : Folder for changelist.json and the ledger. Required, except with `plan` and `repeat`, which only print.
    ledger : Folder that stores every answer of `api` or `model`. A stored answer is never requested again. By default OUTPUT/ledger.
    runner_config : Engine: direct, direct_multi, prism, flink, spark, dataflow, or a YAML file.
    runner_option : Option of the engine. One or several.
    resume : Continue a stopped run without reading its pool again. Start it if there is none; do nothing if it has published its result. Answers in the ledger are always used.
    work_dir : Folder for unfinished work. By default OUTPUT/_work.
    memory_budget : Memory that reading the pool may use for a chunk of it.
    chunk_rows : Maximum number of examples to read at a time.
    allow_http : Send keys over http:// to other machines, where others can read them.
    progress : print progress and notes on stderr

    Raises
    ------
    InputError
        An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
    EngineError
        The engine, an API or the storage (`StorageError`) failed.
    """

class edit:
    """Change the slices of a ChangeList. Every edit can be undone.

    Each edit writes a new revision to the same folder. The document itself does not change.
    """

    @staticmethod
    def rename(
        changelist: StrPath, /, *, slice: str, name: str, progress: bool = False
    ) -> Revision:
        """Give a slice another name.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        slice : Slice, given by its slice_id, the start of its slice_id, or its name.
        name : New name of the slice.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def describe(
        changelist: StrPath, /, *, slice: str, text: str, progress: bool = False
    ) -> Revision:
        """Write the description of a slice.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        slice : Slice, given by its slice_id, the start of its slice_id, or its name.
        text : Description of the slice. An empty one removes it.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def annotate(
        changelist: StrPath, /, *, slice: str, note: str, progress: bool = False
    ) -> Revision:
        """Add a note to a slice.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        slice : Slice, given by its slice_id, the start of its slice_id, or its name.
        note : Note to add.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def remove(changelist: StrPath, /, *, slice: str, progress: bool = False) -> Revision:
        """Remove a slice.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        slice : Slice, given by its slice_id, the start of its slice_id, or its name.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def merge(
        changelist: StrPath,
        /,
        *,
        slices: str | Sequence[str],
        name: str,
        data: StrPath | Sequence[StrPath] = (),
        encoder: str | None = None,
        model: StrPath | None = None,
        baseline_model: StrPath | None = None,
        metric: str | Sequence[str] = (),
        runner_config: str = "direct",
        runner_option: str | Sequence[str] | Mapping[str, object] = (),
        allow_http: bool = False,
        progress: bool = False,
    ) -> Revision:
        """Merge slices into one, which holds the examples of any of them.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        slices : Slice to merge, given by its slice_id or name. One or several.
        name : Name of the new slice.
        data : Files or globs of the examples. One or several. By default as in the ChangeList.
        encoder : Confirms the encoder in the ChangeList, where it is code (module:function) or an endpoint (openai:URL) that gets your texts.
        model : Confirms the model in the ChangeList. Loading it runs the code in it.
        baseline_model : Confirms the old model in the ChangeList.
        metric : Confirms the metrics in the ChangeList, where one is your own (module:Name, or of an installed package). Importing it runs its code. One or several.
        runner_config : Engine: direct, direct_multi, prism, flink, spark, dataflow, or a YAML file.
        runner_option : Option of the engine. One or several.
        allow_http : Send keys over http:// to other machines, where others can read them.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def split(
        changelist: StrPath,
        /,
        *,
        slice: str,
        where: str,
        data: StrPath | Sequence[StrPath] = (),
        encoder: str | None = None,
        model: StrPath | None = None,
        baseline_model: StrPath | None = None,
        metric: str | Sequence[str] = (),
        name: str | Sequence[str] = (),
        runner_config: str = "direct",
        runner_option: str | Sequence[str] | Mapping[str, object] = (),
        allow_http: bool = False,
        progress: bool = False,
    ) -> Revision:
        """Split a slice into two by a predicate.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        slice : Slice, given by its slice_id, the start of its slice_id, or its name.
        where : Predicate that splits the slice. The examples that satisfy it become one part, the others the second.
        data : Files or globs of the examples. One or several. By default as in the ChangeList.
        encoder : Confirms the encoder in the ChangeList, where it is code (module:function) or an endpoint (openai:URL) that gets your texts.
        model : Confirms the model in the ChangeList. Loading it runs the code in it.
        baseline_model : Confirms the old model in the ChangeList.
        metric : Confirms the metrics in the ChangeList, where one is your own (module:Name, or of an installed package). Importing it runs its code. One or several.
        name : Name of a part. Give it twice, or not at all. By default made from the slice and the predicate.
        runner_config : Engine: direct, direct_multi, prism, flink, spark, dataflow, or a YAML file.
        runner_option : Option of the engine. One or several.
        allow_http : Send keys over http:// to other machines, where others can read them.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def undo(changelist: StrPath, /, *, progress: bool = False) -> Revision:
        """Reverse the last edit that has not been undone yet.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def log(changelist: StrPath, /, *, progress: bool = False) -> tuple[Edit, ...]:
        """Print the edits, in order.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

class export:
    """Write a ChangeList in the format of another tool."""

    @staticmethod
    def tfma(changelist: StrPath, /, *, to: StrPath, progress: bool = False) -> Exported:
        """Write a ChangeList as an output folder of TensorFlow Model Analysis.

        tfma.load_eval_result, tfma.view and tfma.load_validation_result read it. Bins, lists of values and missing values become derived columns; slices.json says what they stand for.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        to : Folder to write.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

class adapt:
    """Grow tests of a model, and see which topics an update fixed and broke.

    Tests are in topics, in a CSV file as AdaTest writes it.
    """

    @staticmethod
    def run(
        tree: StrPath,
        /,
        *,
        model: str,
        output: StrPath | None = None,
        baseline_model: str | None = None,
        output_classifier: str | None = None,
        classes: str | Sequence[str] | Mapping[str, object] = (),
        budget: str | None = None,
        ledger: StrPath | None = None,
        alpha: float = 0.05,
        since: StrPath | None = None,
        allow_http: bool = False,
        progress: bool = False,
    ) -> Published:
        """Score a test tree, and report the topics that fail, and those fixed and broken.

        A topic with those below it is a slice of the ChangeList: with `baseline_model` the two models are compared test by test (McNemar's test, Benjamini-Hochberg over all topics). An answer that an endpoint sold is in the ledger before it is used, and is not paid twice.

        Parameters
        ----------
        tree : Test tree: a CSV file of AdaTest.
        model : Model to test: module:function, which gets a list of texts or makes a model; a pipeline of scikit-learn (pickle, joblib), whose code runs; or the .yaml file of an HTTP endpoint, as for slicebeam shift `api`, with {input} in it.
        output : Folder for changelist.json, slices.parquet and tests.parquet, which has the score of each test.
        baseline_model : The old model, in any of these forms, to report which topics are fixed and broken.
        output_classifier : Classifier of outputs, for tests that should not be classified as something.
        classes : Class of the model that a name in the tree means, as in pos=positive; pos=pos says that the name is right. One or several. By default the names are the same.
        budget : Budget of paid answers: calls, or money such as 5USD by the price in the .yaml files. Earlier runs with the same ledger count. Tests that it does not buy are not scored. By default an answer for each input.
        ledger : Folder that keeps the answers that were paid for. By default OUTPUT/ledger.
        alpha : False discovery rate of topics that are fixed or broken.
        since : ChangeList of an earlier run on the tree, to report what is new, gone, worse or better since.
        allow_http : Send keys over http:// to other machines, where others can read them.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def suggest(
        tree: StrPath,
        /,
        *,
        model: str,
        pool: StrPath | None = None,
        text: str | None = None,
        other_tree: StrPath | None = None,
        templates: StrPath | None = None,
        topic: str = "",
        classes: str | Sequence[str] | Mapping[str, object] = (),
        endpoint: str | None = None,
        budget: str | None = None,
        ledger: StrPath | None = None,
        seed: int = 0,
        proposer: str | Sequence[str] = (),
        proposals: int = 25,
        topics: bool = False,
        output: StrPath | None = None,
        allow_http: bool = False,
        progress: bool = False,
    ) -> Suggestions:
        """Propose tests of a topic, score them by a model, and write those that fail first.

        Templates, a pool of texts and another tree need no language model; with `endpoint` one goes on with the tests of the topic. Tests that you accept into the tree steer what is proposed next.

        Parameters
        ----------
        tree : Test tree: a CSV file of AdaTest.
        model : Model to find failing tests of: module:function, a pipeline of scikit-learn, or the .yaml file of an HTTP endpoint, as for slicebeam adapt run.
        pool : Texts without labels: a text a line, or CSV, JSON Lines or Parquet with `text`.
        text : Column of the texts in `pool`. By default text.
        other_tree : Another test tree, whose tests are proposed.
        templates : YAML file of templates, with what is expected of them. By default those of sentiment, where the model has such outputs.
        topic : Topic that gets the suggestions, such as /Negation. By default the whole tree.
        classes : Class of the model that a name in the tree means, as in pos=positive; pos=pos says that the name is right. One or several. By default the names are the same.
        endpoint : Language model: the URL of an API like OpenAI's (https://host/v1?model=NAME), whose key is in OPENAI_API_KEY; or a .yaml file, as for slicebeam shift `api`, with {prompt} in it.
        budget : Budget of paid calls, of `endpoint` and of a paid `model` together: calls, or money such as 5USD by the price in the .yaml files. Earlier runs with the same ledger count. By default what the proposals need.
        ledger : Folder that keeps the answers that were paid for. By default beside `output`.
        seed : Random seed.
        proposer : What proposes: templates, mined, neighbours, tree, endpoint. One or several. By default all that have what they need.
        proposals : Number of proposals to score.
        topics : Suggest topics below `topic`, instead of tests.
        output : Test tree to write the suggestions to, those that fail first. By default TREE.suggestions.csv.
        allow_http : Send keys over http:// to other machines, where others can read them.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def export_training(
        tree: StrPath,
        /,
        *,
        changelist: StrPath,
        data: StrPath,
        label: str,
        to: StrPath,
        text: str | Sequence[str] = ("text",),
        topic: str | Sequence[str] = (),
        classes: str | Sequence[str] | Mapping[str, object] = (),
        progress: bool = False,
    ) -> TrainingExport:
        """Write failing tests with the label that is right, to train on.

        The file has the columns of texts and labels of the data, the topic, and a weight: tests of the same text share the weight 1. Tests that say no label are left out and counted. Exported tests are marked in the tree, so that slicebeam adapt run says which topics were trained on.

        Parameters
        ----------
        tree : Test tree: a CSV file of AdaTest.
        changelist : ChangeList (any revision), or its folder for the last revision.
        data : Training data, whose labels the tests get: a file of Parquet or CSV (.gz).
        label : Column of the labels in `data`.
        to : File to write (.parquet, .csv), with text, label, topic and weight.
        text : Column of the texts in `data`; of pairs both columns. One or several. By default text.
        topic : Topic whose failing tests to export, such as /Negation. One or several. By default the whole tree.
        classes : Label of `data` that a name in the tree means, as in pos=positive. One or several. By default `classes` of the run in `changelist`.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def from_(
        changelist: StrPath,
        /,
        *,
        to: StrPath,
        data: StrPath | Sequence[StrPath] = (),
        text: str | Sequence[str] = (),
        slice: str | Sequence[str] = (),
        encoder: str | None = None,
        model: StrPath | None = None,
        baseline_model: StrPath | None = None,
        metric: str | Sequence[str] = (),
        seed: int = 0,
        append: bool = False,
        topic: str = "/found",
        classes: str | Sequence[str] | Mapping[str, object] = (),
        examples: int = 10,
        allow_http: bool = False,
        progress: bool = False,
    ) -> SliceTests:
        """Make topics of the slices that a run found, with their failing examples as tests.

        A test expects the label of its example. The examples that the model gets wrong come first, of two models those that the update broke.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        to : Test tree to write.
        data : Files or globs of the examples. One or several. By default as in the ChangeList.
        text : Column of the texts that are the inputs of the model; two for pairs. One or several. By default that of a discovery, or the only column of free text.
        slice : Slice (id, the beginning of one, or name) to make a topic of. One or several. By default the findings; of a discovery all slices.
        encoder : Confirms the encoder in the ChangeList, where it is code (module:function) or an endpoint (openai:URL) that gets your texts.
        model : Confirms the model in the ChangeList. Loading it runs the code in it.
        baseline_model : Confirms the old model in the ChangeList.
        metric : Confirms the metrics in the ChangeList, where one is your own (module:Name, or of an installed package). Importing it runs its code. One or several.
        seed : Random seed.
        append : Add to the tree in `to`, if there is one, the tests that it has not.
        topic : Topic below which those of the slices are.
        classes : Label of the run that a name in the tree means, as in pos=positive: tests expect pos. One or several. By default the labels of the run.
        examples : Maximum number of tests of each slice.
        allow_http : Send keys over http:// to other machines, where others can read them.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def import_checklist(
        suite: StrPath,
        /,
        *,
        to: StrPath,
        expectations: StrPath | None = None,
        progress: bool = False,
    ) -> ImportedSuite:
        """Write the test tree of a CheckList suite: a topic each test, a test each case.

        The suite is a table with the columns test, capability, type, input and label. What a test expects beyond a label is code in CheckList; say it in `expectations`.

        Parameters
        ----------
        suite : Suite of CheckList: a table (.parquet, .csv) with test, capability, type, input, label.
        to : Test tree to write.
        expectations : YAML file with the names of the labels and, by the name of a test, what it expects.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

class attribute:
    """Test with a few labels whether words describe a slice.

    The command estimates the precision and recall of the words, with intervals.
    """

    @staticmethod
    def sample(
        changelist: StrPath,
        /,
        *,
        slice: str,
        text: str,
        budget: int,
        data: StrPath | Sequence[StrPath] = (),
        labels_dir: StrPath | None = None,
        query: str | Sequence[str] = (),
        train: bool = False,
        encoder: str | None = None,
        model: StrPath | None = None,
        baseline_model: StrPath | None = None,
        metric: str | Sequence[str] = (),
        least_precision: float | None = None,
        least_recall: float | None = None,
        looks: int | None = None,
        seed: int | None = None,
        exponent: float = 4.0,
        uniform_share: float = 0.2,
        allow_http: bool = False,
        progress: bool = False,
    ) -> Sampled:
        """Write the items to label, as CSV.

        Fill in the column label with yes, no or unsure in either file. When run again, the command draws another round.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        slice : Slice, given by its slice_id, the start of its slice_id, or its name.
        text : Words to test: a description that should be true of the slice's examples.
        budget : Number of labels in this round.
        data : Files or globs of the examples. One or several. By default as in the ChangeList.
        labels_dir : Folder of the labels. By default attribution, beside `changelist`.
        query : Text similar to the examples that `text` describes, to find those that the slice misses. One or several. By default `text`.
        train : Draw items for training a classifier instead of for estimation.
        encoder : Confirms the encoder in the ChangeList, where it is code (module:function) or an endpoint (openai:URL) that gets your texts.
        model : Confirms the model in the ChangeList. Loading it runs the code in it.
        baseline_model : Confirms the old model in the ChangeList.
        metric : Confirms the metrics in the ChangeList, where one is your own (module:Name, or of an installed package). Importing it runs its code. One or several.
        least_precision : Precision to accept. Kept from the first round. By default 0.8.
        least_recall : Recall to accept. Kept from the first round. By default 0.8.
        looks : Number of times you will check whether there are enough labels. The intervals allow for it. Kept from the first round. By default 1, or `rounds`.
        seed : Random seed. Kept from the first round. By default 0.
        exponent : Strength of the preference for examples similar to `query`, in draws outside the slice.
        uniform_share : Share of the draws outside the slice that are uniform, above 0.
        allow_http : Send keys over http:// to other machines, where others can read them.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def estimate(
        changelist: StrPath,
        /,
        *,
        slice: str,
        text: str,
        data: StrPath | Sequence[StrPath] = (),
        labels_dir: StrPath | None = None,
        encoder: str | None = None,
        model: StrPath | None = None,
        baseline_model: StrPath | None = None,
        metric: str | Sequence[str] = (),
        least_precision: float | None = None,
        least_recall: float | None = None,
        looks: int | None = None,
        seed: int | None = None,
        allow_http: bool = False,
        progress: bool = False,
    ) -> Finished:
        """Estimate precision and recall from the labels, and publish them in a new revision.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        slice : Slice, given by its slice_id, the start of its slice_id, or its name.
        text : Words to test: a description that should be true of the slice's examples.
        data : Files or globs of the examples. One or several. By default as in the ChangeList.
        labels_dir : Folder of the labels. By default attribution, beside `changelist`.
        encoder : Confirms the encoder in the ChangeList, where it is code (module:function) or an endpoint (openai:URL) that gets your texts.
        model : Confirms the model in the ChangeList. Loading it runs the code in it.
        baseline_model : Confirms the old model in the ChangeList.
        metric : Confirms the metrics in the ChangeList, where one is your own (module:Name, or of an installed package). Importing it runs its code. One or several.
        least_precision : Precision to accept. Kept from the first round. By default 0.8.
        least_recall : Recall to accept. Kept from the first round. By default 0.8.
        looks : Number of times you will check whether there are enough labels. The intervals allow for it. Kept from the first round. By default 1, or `rounds`.
        seed : Random seed. Kept from the first round. By default 0.
        allow_http : Send keys over http:// to other machines, where others can read them.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """

    @staticmethod
    def run(
        changelist: StrPath,
        /,
        *,
        slice: str,
        text: str,
        budget: int,
        data: StrPath | Sequence[StrPath] = (),
        labels_dir: StrPath | None = None,
        query: str | Sequence[str] = (),
        rounds: int = 1,
        train: int = 0,
        labels: str | None = None,
        positive: str | Sequence[str] = (),
        llm: StrPath | None = None,
        ledger: StrPath | None = None,
        encoder: str | None = None,
        model: StrPath | None = None,
        baseline_model: StrPath | None = None,
        metric: str | Sequence[str] = (),
        least_precision: float | None = None,
        least_recall: float | None = None,
        looks: int | None = None,
        seed: int | None = None,
        exponent: float = 4.0,
        uniform_share: float = 0.2,
        allow_http: bool = False,
        progress: bool = False,
    ) -> Finished | Stopped:
        """Label in rounds until there is a decision: from a column, with a language model, or by hand.

        If stopped, the command continues when run again with the same options. No item is labelled twice.

        Parameters
        ----------
        changelist : a ChangeList, or its folder for the last revision
        slice : Slice, given by its slice_id, the start of its slice_id, or its name.
        text : Words to test: a description that should be true of the slice's examples.
        budget : Number of labels in all rounds, including those of earlier runs.
        data : Files or globs of the examples. One or several. By default as in the ChangeList.
        labels_dir : Folder of the labels. By default attribution, beside `changelist`.
        query : Text similar to the examples that `text` describes, to find those that the slice misses. One or several. By default `text`.
        rounds : Number of rounds. After each, the command checks whether there are enough labels.
        train : Number of further labels for training a classifier, which proposes a better slice if the words do not describe this one.
        labels : Column of the labels.
        positive : Value of `labels` that means yes. One or several.
        llm : YAML file that describes a language model's API, as for slicebeam shift `api`. Its prompt contains {attribution_text} and the columns that show an item.
        ledger : Folder that stores the paid answers. By default in the folder of the labels.
        encoder : Confirms the encoder in the ChangeList, where it is code (module:function) or an endpoint (openai:URL) that gets your texts.
        model : Confirms the model in the ChangeList. Loading it runs the code in it.
        baseline_model : Confirms the old model in the ChangeList.
        metric : Confirms the metrics in the ChangeList, where one is your own (module:Name, or of an installed package). Importing it runs its code. One or several.
        least_precision : Precision to accept. Kept from the first round. By default 0.8.
        least_recall : Recall to accept. Kept from the first round. By default 0.8.
        looks : Number of times you will check whether there are enough labels. The intervals allow for it. Kept from the first round. By default 1, or `rounds`.
        seed : Random seed. Kept from the first round. By default 0.
        exponent : Strength of the preference for examples similar to `query`, in draws outside the slice.
        uniform_share : Share of the draws outside the slice that are uniform, above 0.
        allow_http : Send keys over http:// to other machines, where others can read them.
        progress : print progress and notes on stderr

        Raises
        ------
        InputError
            An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.
        EngineError
            The engine, an API or the storage (`StorageError`) failed.
        """
