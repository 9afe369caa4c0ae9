"""``--log-format json``: what a run does as JSON lines on stderr, for schedulers and log stores."""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.show.terminal_text import json_line
from slicebeam.transforms.storage.secrets import redacted

if TYPE_CHECKING:
    from slicebeam.pipelines.run.open_run import Published
    from slicebeam.pipelines.run.work_folder import DataOptions
    from slicebeam.pipelines.shift.run import PublishedShift

_MOST_FILES = 100
_OF_METRIC = {"tested", "significant", "degraded", "reported"}
_OF_SINCE = {"changelist_id", "compared", "new", "gone", "worse", "better", "overall"}
_OF_COST = {"calls", "replayed", "unaccounted", "spent"}
# What may repeat the words of an engine or an endpoint.
_TEXTS = frozenset({"text", "message", "runner"})


class EventLog:
    """Writes events, each a JSON object in a line of its own.

    Every event has ``time`` (UTC, ISO 8601), ``event`` (its kind) and ``run`` (the same in all
    events of a run, and in no other). New kinds and new keys may be added; the existing ones stay.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.run = uuid.uuid4().hex[:12]

    def write(self, event: str, **facts: Any) -> None:
        """Write an event."""
        # A failure is no less one because the log is quiet.
        if self.quiet and not facts.get("exit_code"):
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        # Paths, of which others open the files, stay as they are.
        for name in _TEXTS & facts.keys():
            facts[name] = redacted(facts[name])
        line = {"time": now.replace("+00:00", "Z"), "event": event, "run": self.run, **facts}
        sys.stderr.write(json_line(line) + "\n")
        # What follows the log sees a line when it is written, not when a buffer is full.
        sys.stderr.flush()

    def begin(self, config: DataOptions, files: Sequence[str], engine: str) -> None:
        """Tell what runs: the command, a hash of its configuration, and the data."""
        options = json.dumps(config.model_dump(mode="json"), sort_keys=True)
        self.write(
            "begin",
            command=config.command,
            config_hash=f"sha256:{hashlib.sha256(options.encode()).hexdigest()}",
            files=len(files),
            data=list(files[:_MOST_FILES]),
            output=config.output,
            runner=engine,
        )

    def published(self, published: Published | PublishedShift) -> None:
        """Log the warnings, and the publication."""
        from slicebeam.pipelines.run.open_run import Published

        document, gate = published.changelist, published.changelist.gate
        if isinstance(published, Published):
            warnings, facts = _of_slices(published)
        else:
            warnings, facts = _of_shift(published)
        for warning in warnings:
            self.write("warning", text=warning)
        self.write(
            "published",
            changelist=str(published.changelist_path),
            changelist_id=document.changelist_id,
            changelist_hash=f"sha256:{hashlib.sha256(document.to_json().encode()).hexdigest()}",
            summary=document.summary,
            **facts,
            gate=None if gate is None else "PASS" if gate.passed else "FAIL",
            reasons=[] if gate is None else list(gate.reasons),
            exit_code=0 if gate is None else gate.exit_code,
        )

    def error(self, message: str, code: int) -> None:
        """Tell why the run ended without a result."""
        self.write("error", message=message, exit_code=code)


def _of_slices(published: Published) -> tuple[Sequence[str], dict[str, Any]]:
    from slicebeam.pipelines.show.result_notes import hint_lines

    document = published.changelist
    since, testing = document.since, document.testing
    warnings = [*document.dataset.drift, *hint_lines(document.dataset), *testing.warnings]
    facts: dict[str, Any] = {
        "slices": str(published.slices_path),
        "slices_hash": document.search.slices_fingerprint,
        **{name: getattr(testing, name) for name in ("tested", "significant", "degraded")},
        "reported": document.search.reported,
        "metrics": {part.metric: part.model_dump(include=_OF_METRIC) for part in testing.metrics},
    }
    if since is not None:
        warnings += since.warnings
        facts["since"] = since.model_dump(mode="json", include=_OF_SINCE, exclude_none=True)
    return warnings, facts


def _of_shift(published: PublishedShift) -> tuple[Sequence[str], dict[str, Any]]:
    shift, change = published.changelist.shift, published.changelist.global_[0]
    return shift.warnings, {
        **shift.cost.model_dump(include=_OF_COST),
        "stopped": shift.stopped,
        "accuracy_shift": None if change.delta is None else change.delta.value,
        "significant": change.significant,
        "changed_cells": len(shift.changed),
    }
