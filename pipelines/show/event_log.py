"""``--log-format json``: what a run does as JSON lines on stderr, for schedulers and log stores."""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.show.terminal_text import json_line
from slicebeam.transforms.secrets.variables import redacted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.config.common import DataConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.open_run import Published
    from slicebeam.pipelines.run.stage import Stage
    from slicebeam.pipelines.search.iteration_records import IterationRecord, Progress
    from slicebeam.pipelines.shift.run import PublishedShift

_MOST_FILES = 100
_OF_METRIC = {"tested", "significant", "degraded", "reported"}
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

    def _write(self, event: str, **facts: Any) -> None:
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

    def begin(self, config: DataConfig, files: Sequence[str], engine: str) -> None:
        """Tell what runs: the command, a hash of its configuration, and the data."""
        options = json.dumps(config.model_dump(mode="json"), sort_keys=True)
        self._write(
            "begin",
            command=config.command,
            config_hash=f"sha256:{hashlib.sha256(options.encode()).hexdigest()}",
            files=len(files),
            data=list(files[:_MOST_FILES]),
            output=config.output,
            runner=engine,
        )

    def stage(self, text: str) -> None:
        """Tell what begins."""
        self._write("stage", text=text)

    def counted(self, stage: Stage, done: int) -> None:
        """Tell how far a stage is."""
        self._write("progress", text=stage.text, done=done, total=stage.total, unit=stage.unit)

    def prepared(self, prepared: EncodedDataset) -> None:
        """Log the prepared data, and the columns that are not features."""
        self._write(
            "domains",
            examples=prepared.rows,
            features=len(prepared.domains),
            predicates=prepared.lattice.singletons,
            conjunctions=prepared.lattice.space(),
            left_out={column.name: column.reason for column in prepared.left_out},
        )

    def progress(self, progress: Progress) -> None:
        """Tell that an iteration begins."""
        self._write(
            "iteration_begin",
            iteration=progress.iteration,
            candidates=progress.candidates,
            significant=progress.significant,
        )

    def recorded(self, record: IterationRecord) -> None:
        """Log the work and cost of an iteration, as in the ChangeList."""
        self._write("iteration", **vars(record))

    def note(self, text: str) -> None:
        """Tell something that the user should know."""
        self._write("note", text=text)

    def published(self, published: Published) -> None:
        """Log the warnings, and the publication."""
        from slicebeam.pipelines.search.summary import overall_json
        from slicebeam.pipelines.show.result_notes import hint_lines

        document = published.changelist
        since = document.since
        noted = (*document.dataset.drift, *hint_lines(document.dataset), *document.testing.warnings)
        for warning in (*noted, *(since.warnings if since else ())):
            self._write("warning", text=warning)
        facts: dict[str, Any] = {}
        if since is not None:
            names = ("changelist_id", "compared", "new", "gone", "worse", "better")
            facts["since"] = {name: getattr(since, name) for name in names}
            facts["since"]["overall"] = [overall_json(one) for one in since.overall]
        self._published(
            published,
            slices=str(published.slices_path),
            slices_hash=document.search.slices_fingerprint,
            tested=sum(document.testing.tested_per_level),
            significant=document.testing.significant,
            degraded=document.testing.degraded,
            reported=document.search.reported,
            metrics={
                one.metric: one.model_dump(include=_OF_METRIC) for one in document.testing.metrics
            },
            **facts,
        )

    def published_shift(self, published: PublishedShift) -> None:
        """Log the warnings, and the publication of a shift."""
        document = published.changelist
        shift, change = document.shift, document.global_[0]
        for warning in shift.warnings:
            self._write("warning", text=warning)
        self._published(
            published,
            calls=shift.cost.calls,
            replayed=shift.cost.replayed,
            unaccounted=shift.cost.unaccounted,
            spent=shift.cost.spent,
            stopped=shift.stopped,
            accuracy_shift=None if change.delta is None else change.delta.value,
            significant=change.significant,
            changed_cells=len(shift.changed),
        )

    def _published(self, published: Published | PublishedShift, **facts: Any) -> None:
        document, gate = published.changelist, published.changelist.gate
        judged: dict[str, Any] = {"gate": None, "reasons": [], "exit_code": 0}
        if gate is not None:
            judged = {
                "gate": "PASS" if gate.passed else "FAIL",
                "reasons": list(gate.reasons),
                "exit_code": gate.exit_code,
            }
        self._write(
            "published",
            changelist=str(published.changelist_path),
            changelist_id=document.changelist_id,
            changelist_hash=f"sha256:{hashlib.sha256(document.to_json().encode()).hexdigest()}",
            summary=document.summary,
            **facts,
            **judged,
        )

    def error(self, message: str, code: int) -> None:
        """Tell why the run ended without a result."""
        self._write("error", message=message, exit_code=code)
