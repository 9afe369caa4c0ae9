"""Draws the items of a round: at random in the slice, by similarity to the words outside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.attribution.estimates import proposal, simple_random_sample, split_labels
from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.attribution.population import ids_at
from slicebeam.pipelines.attribution.state import Drawn

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.attribution.estimates import Proposal
    from slicebeam.pipelines.attribution.population import SlicePopulation
    from slicebeam.pipelines.attribution.state import Plan, State
    from slicebeam.transforms.encode.definitions import Id

# Draws for each item that is wanted for training: those drawn twice or labelled before don't count.
_TRIES = 20


def draw_round(
    population: SlicePopulation, state: State, known: Collection[Id], budget: int, plan: Plan
) -> Drawn | None:
    """Return the items of a further round, None if every example was drawn before.

    Items whose label is known are not labelled again, so that a round may cost less than its
    budget. Their draws are not replaced: how many draws there are must not depend on what they are.
    """
    inside, outside = np.flatnonzero(population.member), np.flatnonzero(~population.member)
    in_slice, others = split_labels(
        budget,
        size=inside.size,
        # All others once is all that can be known of them.
        size_outside=0 if _has_census(state) else outside.size,
        labelled=state.labelled,
        drawn=state.drawn,
        precision=state.least_precision,
        recall=state.least_recall,
        least_weight=plan.uniform_share,
        confidence=1 - (1 - state.confidence) / state.looks,
    )
    if not in_slice + others:
        return None
    seed, number = state.sampling_seed, len(state.rounds)
    sample = simple_random_sample(
        population.data.hashes[inside], in_slice, seed=seed, start=state.labelled
    )
    drawn, weights, least = np.zeros(0, np.int64), np.zeros(0), None
    is_census = others == outside.size
    if others and is_census:
        # In a random order, so that the first of them are a sample.
        drawn = simple_random_sample(population.data.hashes[outside], others, seed=seed)
        weights, least = np.ones(others), 1.0
    elif others:
        found = _proposal(population, outside, plan)
        drawn = found.draw(others, seed=seed, round_number=number)
        weights, least = found.weight(drawn), found.least_weight
    precision, recall = (
        ids_at(population.data.ids, inside[sample]),
        ids_at(population.data.ids, outside[drawn]),
    )
    return Drawn(
        number=number + 1,
        budget=budget,
        queries=tuple(plan.queries or (plan.text,)),
        exponent=None if is_census or not others else plan.exponent,
        uniform_share=None if is_census or not others else plan.uniform_share,
        precision=precision,
        recall=recall,
        weights=tuple(weights.tolist()),
        least_weight=least,
        asked=_unknown(_interleaved(precision, recall), known),
    )


def draw_training(
    population: SlicePopulation, state: State, known: Collection[Id], budget: int, plan: Plan
) -> Drawn:
    """Return items to train a classifier by, none of which was labelled before.

    Half of them are of the slice, at random, and half of the others, by the proposal.
    """
    inside, outside = np.flatnonzero(population.member), np.flatnonzero(~population.member)
    seed, number = state.sampling_seed + 1, len(state.rounds)
    taken = {*known, *(item for round_ in state.rounds for item in round_.items)}
    order = simple_random_sample(
        population.data.hashes[inside], budget + len(taken), seed=seed, start=0
    )
    half = budget // 2 if outside.size else 0
    others: tuple[Id, ...] = ()
    if half:
        found = _proposal(population, outside, plan)
        drawn = found.draw(_TRIES * half, seed=seed, round_number=number)
        others = _unknown(ids_at(population.data.ids, outside[drawn]), taken)[:half]
    members = _unknown(ids_at(population.data.ids, inside[order]), taken)[: budget - len(others)]
    if not members and not others:
        raise InputError("every example that could train a classifier already has a label")
    items = _interleaved(members, others)
    return Drawn(
        number=number + 1,
        budget=budget,
        queries=tuple(plan.queries or (plan.text,)),
        exponent=plan.exponent,
        uniform_share=plan.uniform_share,
        train=items,
        asked=items,
    )


def _has_census(state: State) -> bool:
    return any(round_.recall and round_.exponent is None for round_ in state.rounds)


def _proposal(population: SlicePopulation, outside: IntArray, plan: Plan) -> Proposal:
    similarity = population.data.similarity(plan.queries or (plan.text,))[:, outside]
    return proposal(similarity, exponent=plan.exponent, uniform_share=plan.uniform_share)


def _unknown(items: Sequence[Id], known: Collection[Id]) -> tuple[Id, ...]:
    """Return items that have no label, each once."""
    return tuple(item for item in dict.fromkeys(items) if item not in known)


def _interleaved(first: Sequence[Id], second: Sequence[Id]) -> tuple[Id, ...]:
    """Return items of both in their order, evenly mixed.

    Whoever stops labelling in the midst then has labelled the first draws of both, which are
    samples themselves.
    """
    places = [
        ((at + 0.5) / len(part), item) for part in (first, second) for at, item in enumerate(part)
    ]
    return tuple(item for _, item in sorted(places, key=lambda place: place[0]))
