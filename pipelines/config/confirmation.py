"""Code, programs and endpoints that a document names but only the user may start.

A ChangeList may come from a stranger. Its paths, columns and predicates are data; but loading a
model runs the code in it, and an endpoint gets the user's texts and keys. Such entries of a
document are used only if the user names them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slicebeam.metrics.errors import InputError, flag
from slicebeam.metrics.kinds import is_tfma

_RUNS_CODE = "loading it runs the code in it"
_IMPORTS = "importing it runs its code"
_STARTS = "it decides which programs start"
_SENDS = "data and keys are sent to the endpoint in it"
# Why an option of a document needs the user's word.
_REASONS = {
    "model": _RUNS_CODE,
    "baseline_model": _RUNS_CODE,
    "runner_config": _STARTS,
    "runner_option": _STARTS,
    "beam": _STARTS,
    "api": _SENDS,
    "phrases": _SENDS,
    "tfma_module": _IMPORTS,
    "encoder": _IMPORTS,
}
_LOCAL_ENGINES = frozenset({"direct", "direct_multi"})


@dataclass(frozen=True)
class Confirmed:
    """What the user names again, for a document that names it too."""

    model: str | None = None
    baseline_model: str | None = None
    encoder: str | None = None
    metric: Sequence[str] = ()


NOTHING = Confirmed()


def refuse_unconfirmed(
    source: str, options: Mapping[str, Any], confirmed: Mapping[str, Any]
) -> None:
    """Refuse options of a document that run code, start a program or ask an endpoint, unless the user confirms them."""
    _refuse_metrics(source, options.get("metric", ()), confirmed.get("metric", ()))
    for name, value in options.items():
        reason = _reason(name, value)
        if reason is not None and confirmed.get(name) != value:
            words = map(str, value) if isinstance(value, (list, tuple)) else [str(value)]
            named = f"{flag(name)} {' '.join(words)}"
            raise InputError(
                f"{source} names {named}, and {reason}; if you trust it, confirm it with {named}"
            )


def _refuse_metrics(source: str, names: Any, confirmed: Any) -> None:
    from slicebeam.metrics.measures.registry import is_built_in

    listed = [str(name) for name in (names if isinstance(names, (list, tuple)) else [names])]
    for name in listed:
        if name not in confirmed and not is_tfma(name) and not is_built_in(name):
            raise InputError(
                f"{source} names --metric {name}, and {_IMPORTS}; if you trust it, confirm it with "
                f"--metric {','.join(listed)}"
            )


def _reason(name: str, value: Any) -> str | None:
    text = str(value)
    harmless = {
        # A name is that of an encoder of slicebeam's: it imports nothing of a user's, and asks nobody.
        "encoder": ":" not in text,
        "runner_config": text in _LOCAL_ENGINES,
        # A file of phrases is data; a YAML file names the API that writes them.
        "phrases": not text.lower().endswith((".yaml", ".yml")),
    }
    if not value or harmless.get(name, False):
        return None
    if name == "encoder" and text.startswith("openai:"):
        return "the texts and the key in OPENAI_API_KEY are sent to it"
    return _REASONS.get(name)
