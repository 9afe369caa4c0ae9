"""Slices for which a language model answers yes: ``define --llm-filter``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from slicebeam.metrics.attribution.estimates import UNSURE, YES
from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.attribution.labels import is_label, label_of_answer
from slicebeam.pipelines.paid_api.calls import Item
from slicebeam.pipelines.paid_api.questions import announcement, buying, read_api, text_key
from slicebeam.transforms.encode.definitions import LlmFilterDefinition

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.pipelines.paid_api.api_file import ApiFile
    from slicebeam.pipelines.paid_api.calls import Answer
    from slicebeam.transforms.storage.storage import StoragePath

# What the prompt says where the text of an example goes, and the file where the prompt goes.
TEXT, PROMPT = "{text}", "prompt"


def llm_filter(
    prompt: str,
    llm: str,
    ids: pa.Array,
    texts: pa.Array,
    folder: StoragePath,
    budget: int,
    on_start: Callable[[str], None],
) -> tuple[LlmFilterDefinition, tuple[str, ...]]:
    """Return the definition of the examples of which a language model says yes, and notes.

    Examples with the same text cost one question. Every answer is in a ledger before it is used,
    so that nothing is paid twice: the same question continues with what was answered, also of other
    data.

    ``prompt``: question with ``{text}``, best with a few answered examples before it. ``llm``: YAML
    file of an HTTP API, as of ``slicebeam shift --api``, in which ``{prompt}`` stands for the
    question. ``ids``: int64 or string [n]. ``texts``: string [n]; an example without one costs no
    question, and is not a member. ``folder``: gets the ledger's folder, ``llm-filter-<hash>``.
    ``budget``: most calls of all runs with this ledger. ``on_start``: receives a line about the
    questions, before the first one.
    """
    if TEXT not in prompt:
        raise OptionError(
            f"--llm-filter: the prompt has no {TEXT}, so the model would not see the example; "
            "write it where the text of the example belongs"
        )
    if budget < 1:
        raise OptionError(f"--budget {budget}: give at least 1")
    api = _api(llm)
    codes = texts.dictionary_encode()
    distinct = codes.dictionary.to_pylist()
    answers, lost = _bought(api, prompt, distinct, folder, budget, on_start)
    said = np.array([label_of_answer(api, answers.get(text)) for text in distinct], np.int8)
    at = codes.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)
    member = np.append(said == YES, np.False_)[at]
    if not member.any():
        raise InputError("the model answers yes for no example; change the prompt")
    notes = [f"the model answers yes for {int(member.sum()):,} of {len(ids):,} examples"]
    unclear = int((np.append(said == UNSURE, np.False_)[at]).sum())
    if unclear:
        notes.append(f"of {unclear:,} it answers neither yes nor no; they are not in the slice")
    if texts.null_count:
        notes.append(f"{texts.null_count:,} examples without text are not in the slice")
    if lost:
        notes.append(
            f"{lost:,} calls may have been charged but got no answer; they count as unclear"
        )
    chosen = tuple(ids.filter(pa.array(member)).to_pylist())
    return LlmFilterDefinition(prompt=prompt, model=llm, ids=chosen), tuple(notes)


def _api(llm: str) -> ApiFile:
    api = read_api(llm, "--llm")
    other = [name for name in api.columns if name != PROMPT]
    if other or not api.columns:
        wrong = (
            f"there is no column {other[0]!r} here" if other else "it has no place for the prompt"
        )
        raise InputError(
            f"{llm}: {wrong}; write {{{PROMPT}}} where the prompt belongs, and nothing else in braces"
        )
    return api


def _bought(
    api: ApiFile,
    prompt: str,
    texts: list[str],
    folder: StoragePath,
    budget: int,
    on_start: Callable[[str], None],
) -> tuple[dict[str, Answer], int]:
    """Return the answer about each text that has one, and how many calls were lost for good."""
    identity = {"api": api.identity, "prompt": text_key(prompt)}
    place = folder / f"llm-filter-{text_key(api.identity + prompt)[:16]}"
    keys = {text_key(text): text for text in texts}
    items = [Item(key, {PROMPT: prompt.replace(TEXT, text)}) for key, text in keys.items()]
    counts = api.lost_calls == "count"
    with buying(api, place, identity, is_label) as (ledger, http):
        gone = ledger.lost if counts else {}
        missing = sum(key not in ledger.answers and key not in gone for key in keys)
        if ledger.calls + missing > budget:
            raise OptionError(
                f"--budget {budget:,} is not enough to ask about all {len(keys):,} different texts: "
                f"{missing:,} more calls are needed, {ledger.calls:,} are paid; give --budget "
                f"{ledger.calls + missing}"
            )
        on_start(announcement(api, missing, f"{len(keys):,} different texts"))
        http.buy(items, ledger, budget)
        found = {text: ledger.answers[key] for key, text in keys.items() if key in ledger.answers}
        return found, sum(key in ledger.lost for key in keys) if counts else 0
