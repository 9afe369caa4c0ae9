"""The command `slicebeam shift`: how a paid API changed, within a budget of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slicebeam.pipelines.report import Report


def shift(data: Any, /, *, resume: bool = False, progress: bool = False, **options: Any) -> Report:
    """Tell how the confusion matrix of an API changed, as ``slicebeam shift`` does.

    Parameters
    ----------
    data : a pandas or Arrow table, or paths or globs of files
    resume : go on where a stopped run was; begin where there is none, do nothing where it published
    progress : tell on stderr how far it is
    options : those of the command, with ``_`` for ``-``; without ``output`` nothing is published, and
        with ``api`` an ``output`` or a ``ledger`` is needed

    Raises
    ------
    InputError
        The options or the data are wrong, or the API refuses the requests.
    EngineError
        The engine, the API or the storage failed; every answer is in the ledger.
    """
    from slicebeam.pipelines.report import reported

    return reported("shift", data, options, resume=resume, progress=progress)
