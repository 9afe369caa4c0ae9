"""The columns that an EvalConfig's models name, of one output or of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class ModelKeys:
    """The models of an EvalConfig.

    Attributes
    ----------
    new, old : a ModelSpec each; None where there is none
    outputs : that metrics are of, in their order; empty where the EvalConfig names none
    """

    new: Any
    old: Any
    outputs: tuple[str, ...]

    @property
    def has_several(self) -> bool:
        """Whether metrics are of several outputs."""
        return len(self.outputs) > 1

    def key(self, spec: Any, name: str, output: str | None = None) -> str:
        """Return a column that a model names, which may stand in a map by outputs; empty for none.

        Parameters
        ----------
        spec : one of the models; None for none
        name : such as ``label_key``
        output : None for the first one

        Raises
        ------
        OptionError
            There are several, and nothing says which is meant.
        """
        if spec is None:
            return ""
        single, several = getattr(spec, name), getattr(spec, f"{name}s")
        if single and several:
            raise OptionError(f"model_specs {spec.name!r} has {name} and {name}s; keep one")
        if not several:
            return str(single)
        wanted = output or next(iter(self.outputs), "")
        if wanted in several:
            return str(several[wanted])
        if wanted or len(set(several.values())) > 1:
            raise OptionError(
                f"{name}s has {', '.join(map(repr, sorted(several)))}, and "
                + (
                    f"no output {wanted!r}; add it"
                    if wanted
                    else "no metrics_specs says which is meant; add output_names"
                )
            )
        return str(next(iter(several.values())))


def model_keys(model_specs: Iterable[Any], metrics_specs: Iterable[Any]) -> ModelKeys:
    """Return the models of an EvalConfig, of which at most one is a baseline.

    Raises
    ------
    OptionError
        There are other models than one with at most one baseline.
    """
    listed = list(model_specs)
    if len(listed) > 2:
        raise OptionError(
            f"model_specs has {len(listed)} models; slicebeam compares one with at most one baseline"
        )
    old = next((one for one in listed if one.is_baseline), None)
    new = [one for one in listed if not one.is_baseline]
    if len(new) > 1:
        raise OptionError("model_specs has two models and no is_baseline; set it on the old one")
    if listed and not new:
        raise OptionError("model_specs has a baseline only; add the model that is evaluated")
    outputs = dict.fromkeys(name for spec in metrics_specs for name in spec.output_names)
    return ModelKeys(new[0] if new else None, old, tuple(outputs))
