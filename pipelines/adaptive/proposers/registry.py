"""All proposers that need no language model, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.pipelines.adaptive.proposers.mined import Mined
from slicebeam.pipelines.adaptive.proposers.mixtures import Mixtures
from slicebeam.pipelines.adaptive.proposers.neighbours import Neighbours
from slicebeam.pipelines.adaptive.proposers.other_tree import OtherTree
from slicebeam.pipelines.adaptive.proposers.perturbations import Perturbations
from slicebeam.pipelines.adaptive.proposers.templates import TemplateFile, TemplateProposer

if TYPE_CHECKING:
    from slicebeam.pipelines.adaptive.proposers.families import Proposer

# The name of the one that asks a language model.
ENDPOINT = "endpoint"
OFFLINE = (
    TemplateProposer.name,
    Mined.name,
    Perturbations.name,
    Neighbours.name,
    Mixtures.name,
    OtherTree.name,
)


def offline_proposers(templates: TemplateFile | None = None) -> dict[str, Proposer]:
    """Return the proposers that need no language model, by name.

    Parameters
    ----------
    templates : a user's own; None for those of sentiment
    """
    made: tuple[Proposer, ...] = (
        TemplateProposer(templates),
        Mined(),
        Perturbations(),
        Neighbours(),
        Mixtures(),
        OtherTree(),
    )
    return {one.name: one for one in made}
