"""Tests and topics that a language model proposes, behind an endpoint that answers like OpenAI's."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import numpy as np

from slicebeam.metrics.errors import OptionError, unknown_name
from slicebeam.pipelines.adaptive.expectations import expectation_of
from slicebeam.pipelines.adaptive.prompts import (
    Completion,
    Prompt,
    PromptItem,
    build_prompts,
    completion_of,
    new_texts,
    topic_items,
)
from slicebeam.pipelines.adaptive.proposers.families import Context, Family, Proposer
from slicebeam.pipelines.adaptive.topics import below
from slicebeam.pipelines.adaptive.tree import IMPUTED, OFF_TOPIC, Test
from slicebeam.pipelines.paid_api.api_file import ApiFile
from slicebeam.pipelines.paid_api.calls import Item
from slicebeam.pipelines.paid_api.questions import announcement, buying, read_api, text_key
from slicebeam.transforms.discovery.endpoint_encoder import KEY_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from slicebeam.pipelines.adaptive.paid_outputs import SharedBudget
    from slicebeam.transforms.storage.storage import StoragePath

ENDPOINT = "endpoint"
NEEDS = "--endpoint, and a test anywhere in the tree; inputs that are no pairs"
OPTION = "--endpoint"
_PROMPT = "prompt"
_EXAMPLE = "https://host/v1?model=NAME"
# A completion is one item; what is longer is cut, and is no test.
_MOST_TOKENS = 100
_FIRST_WITHOUT_ANSWER = 5
_CHAT, _COMPLETIONS = "/chat/completions", "/completions"
# Tests that may stand in prompts, of which the best ones do.
_MOST_ITEMS = 5_000
# Chat models answer a list with words about it, unless they are told to go on.
_INSTRUCTION = (
    "Continue the list by one new item of the same kind and in the same form. Answer with that item "
    "alone."
)


def endpoint_api(endpoint: str) -> ApiFile:
    """Return how a language model is called: by a YAML file with ``{prompt}``, or at a URL like OpenAI's.

    The URL is called at ``…/chat/completions``, unless it ends in ``/completions`` itself.
    """
    if endpoint.lower().endswith((".yaml", ".yml")):
        api = read_api(endpoint, OPTION)
        if list(api.columns) != [_PROMPT]:
            raise OptionError(
                f"{OPTION} {endpoint}: write {{{_PROMPT}}}, and nothing else in braces, where the "
                "prompt goes"
            )
        if api.labels is not None:
            raise OptionError(f"{OPTION} {endpoint}: answers are texts; leave 'labels' out")
        return api
    url, model = _address(endpoint)
    body: dict[str, Any] = {"model": model} if model else {}
    body |= {"max_tokens": _MOST_TOKENS, "stop": ['"\n'], "stream": True}
    if urlsplit(url).path.endswith(_CHAT):
        body["messages"] = [
            {"role": "system", "content": _INSTRUCTION},
            {"role": "user", "content": f"{{{_PROMPT}}}"},
        ]
        answer = "choices[0].message.content"
    else:
        body[_PROMPT] = f"{{{_PROMPT}}}"
        answer = "choices[0].text"
    content: dict[str, Any] = {
        # A brace in an address is no column.
        "url": url.replace("{", "%7B").replace("}", "%7D"),
        "json": body,
        "answer": answer,
        "concurrency": 8,
        "stop_after": _FIRST_WITHOUT_ANSWER,
    }
    if os.environ.get(KEY_VARIABLE):
        content["headers"] = {"Authorization": f"Bearer ${{{KEY_VARIABLE}}}"}
    return ApiFile.of(content, None, f"{OPTION} {url}", os.environ)


def _address(endpoint: str) -> tuple[str, str]:
    """Return the address of requests and the model of a URL."""
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise OptionError(f"{OPTION}: no address ({error}); write {_EXAMPLE}") from error
    if parts.username is not None or parts.password is not None:
        raise OptionError(
            f"{OPTION}: the address holds a user's name or password; write {_EXAMPLE}, and set "
            f"{KEY_VARIABLE} in the environment"
        )
    if parts.scheme not in {"http", "https"} or not host:
        raise OptionError(
            f"{OPTION} {endpoint!r} is neither a URL nor a YAML file; write {_EXAMPLE}"
        )
    model = ""
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key != "model":
            # Not the value, which may be a key.
            raise OptionError(f"{OPTION}: {unknown_name('parameter', key, ['model'])}")
        model = value
    path = parts.path.rstrip("/") or "/v1"
    if not path.endswith(_COMPLETIONS):
        path += _CHAT
    return urlunsplit((parts.scheme, parts.netloc, path, "", "")), model


class Endpoint:
    """Lets a language model go on with the tests of the topic.

    Every completion is in a ledger before it is used: the n-th one of a prompt is bought once, whatever
    becomes of the run.
    """

    def __init__(
        self,
        api: ApiFile,
        folder: StoragePath,
        proposals: int,
        budget: SharedBudget,
        note: Callable[[str], None],
    ) -> None:
        self.api, self.folder, self.proposals = api, folder, proposals
        self.budget, self.note = budget, note

    @property
    def proposer(self) -> Proposer:
        """It as one of the proposers."""
        return Proposer(NEEDS, self.families, self.topics)

    def families(self, context: Context) -> list[Family]:
        """Return one family; none for a tree without tests, or of pairs, which completions are not."""
        items, expectation = _items(context) if not context.has_pairs else ([], "")
        if not items:
            return []
        tests = partial(self._tests, context, items, expectation)
        return [Family(ENDPOINT, "completions", tests)]

    def _tests(
        self, context: Context, items: Sequence[PromptItem], expectation: str
    ) -> Iterator[Test]:
        """Buy the completions when the first one is wanted, and yield tests of them."""
        prompts = build_prompts(items, context.topic, self.proposals, seed=context.seed)
        for completion in self.new_items(prompts):
            # A person is to say whether what the model expects is right.
            yield Test(
                context.topic,
                completion.text,
                labeler=IMPUTED,
                expectation=expectation,
                value=completion.output,
            )

    def topics(self, context: Context) -> list[str]:
        """Return new topics below the focus topic that the model names."""
        names = [topic for topic in context.tree.topics() if topic]
        tree = context.tree
        known = np.nan_to_num(context.scores, nan=0.0)
        scores = np.array(
            [known[tree.within(name) & tree.is_test].max(initial=0.0) for name in names], np.float64
        )
        items = topic_items(names, scores)
        prompts = build_prompts(items, context.topic, self.proposals, seed=context.seed)
        children = [item.text for item in items if item.topic == context.topic]
        new = new_texts(self.new_items(prompts), children)
        return [below(context.topic, completion.text.strip("/")) for completion in new]

    def new_items(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """Return the items of what completes prompts; the note counts those that are none."""
        completed = self.completions(prompts)
        items = [completion_of(text, prompt) for prompt, text in completed]
        kept = [item for item in items if item is not None]
        if len(kept) < len(items):
            number = len(items) - len(kept)
            self.note(f"{number:,} of {len(items):,} completions hold no item of the list")
        return kept

    def completions(self, prompts: Sequence[Prompt]) -> list[tuple[Prompt, str]]:
        """Return what completes prompts, ⌊K / r⌋ completions of each, as far as the budget goes."""
        if not prompts:
            return []
        api, each = self.api, max(1, self.proposals // len(prompts))
        # A short list of tests gives the same prompt several times, each with completions of its own.
        times: Counter[str] = Counter()
        asked: dict[str, Prompt] = {}
        for prompt in [one for one in prompts for _ in range(each)]:
            asked[text_key(f"{times[prompt.text]}\n{prompt.text}")] = prompt
            times[prompt.text] += 1
        items = [Item(key, {_PROMPT: prompt.text}) for key, prompt in asked.items()]
        place = self.folder / f"prompts-{api.identity[:16]}"
        with buying(api, place, {"api": api.identity}, _is_text) as (ledger, http):
            missing = sum(key not in ledger.answers and key not in ledger.lost for key in asked)
            most = self.budget.calls(api)
            limit = ledger.calls + missing if most is None else most
            affordable = min(missing, max(limit - ledger.calls, 0))
            if affordable < missing:
                self.note(
                    f"--budget buys {limit:,} calls, and {ledger.calls:,} are paid: {affordable:,} of "
                    f"{missing:,} completions are bought"
                )
            if affordable:
                self.note(announcement(api, affordable, f"{len(asked):,} completions"))
            http.buy(items, ledger, limit)
            self.budget.spend(api, ledger.calls)
            answers = {key: ledger.answers[key] for key in asked if key in ledger.answers}
            lost = sum(key in ledger.lost for key in asked)
        useless = sum(answer.problem is not None for answer in answers.values())
        if useless:
            self.note(f"{useless:,} of {len(answers):,} answers hold no completion")
        if lost:
            self.note(f"{lost:,} calls may have been charged but returned no answer")
        return [
            (asked[key], answer.value)
            for key, answer in answers.items()
            if isinstance(answer.value, str)
        ]


def _items(context: Context) -> tuple[list[PromptItem], str]:
    """Return what may stand in prompts: the tests of one expectation, that of the best test."""
    tree = context.tree
    rows = np.flatnonzero(tree.is_test & (tree.column("label") != OFF_TOPIC))
    # Of a tree of a million tests those that may be in a prompt, not all.
    scores = np.nan_to_num(context.scores[rows], nan=0.0)
    inside = tree.within(context.topic)[rows]
    rows = rows[np.lexsort((-scores, ~tree.directly_in(context.topic)[rows], ~inside))]
    found: list[PromptItem] = []
    expectation: str | None = None
    for test in tree.rows(rows[:_MOST_ITEMS]):
        kind, value = expectation_of(test)
        if test.second_input:
            continue
        expectation = kind if expectation is None else expectation
        if kind == expectation:
            score = float(np.nan_to_num(context.score_of(test), nan=0.0))
            found.append(PromptItem(test.id, test.topic, test.input, value, score))
    return found, expectation or ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
