"""Finds where a model is worse, or where an update changed it: on which slices, by how much, how surely.

>>> import slicebeam
>>> found = slicebeam.search(frame, label="income", prediction="prediction")  # doctest: +SKIP
>>> found.findings.to_pandas()  # doctest: +SKIP

``search`` looks for slices where a model is worse than on the rest, or than another model;
``check`` measures the slices of an earlier result on new data; ``discover`` looks for groups of
texts, images or embeddings; ``shift`` estimates how a paid API has changed. Each takes a pandas or
Arrow table, or paths, and the options of the command of the same name, with ``_`` for ``-``. Wrong
input raises ``slicebeam.metrics.errors.InputError``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slicebeam.pipelines.commands.api import (
        FindSlices,
        Report,
        adapt,
        attribute,
        check,
        define,
        discover,
        edit,
        export,
        report,
        search,
        shift,
        show,
    )

__all__ = [
    "FindSlices",
    "Report",
    "adapt",
    "attribute",
    "check",
    "define",
    "discover",
    "edit",
    "export",
    "report",
    "search",
    "shift",
    "show",
]
__version__: str


def __getattr__(name: str) -> Any:
    """Import what is used when it is used: whoever loads a module of the package needs no more."""
    if name == "__version__":
        from importlib.metadata import version

        return version("slicebeam")
    if name in __all__:
        from slicebeam.runner_configs.job_log import importing_beam

        with importing_beam():
            from slicebeam.pipelines.commands import api

            return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
