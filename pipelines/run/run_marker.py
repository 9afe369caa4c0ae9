"""What marks a folder as a run's, and identifies that run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.pipelines.config.option_fields import flag
from slicebeam.transforms.storage.checked_files import DamagedFileError, read_facts, write_facts

if TYPE_CHECKING:
    from slicebeam.transforms.storage.storage import StoragePath

_LAYOUT = 7


class OtherRunError(OptionError):
    """What is to be resumed has other options or other data."""


@dataclass(frozen=True)
class RunMarker:
    """A run as it is noted in its work folder.

    ``config``: the options that decide the result, by their names. ``files``: size and time or
    version of each input file; None for a missing one.
    """

    config: dict[str, Any] = field(default_factory=dict)
    files: dict[str, list[int | str] | None] = field(default_factory=dict)
    run_id: str = ""  # the same for all processes of a run; empty before it began
    replaces: str | None = None  # hash of the document when the run began; None if there was none
    is_cleared: bool = True  # whether the stages of the run before are gone
    layout: int = _LAYOUT  # of the work folder, which changes with the program

    @classmethod
    def read(cls, path: StoragePath) -> RunMarker | None:
        """Return what `write` wrote; None if there is no such file."""
        try:
            return cls(**read_facts(path))
        except FileNotFoundError:
            return None
        except (DamagedFileError, TypeError) as error:
            raise InputError(
                f"{path} is damaged or from another version, so it is unknown which run is in "
                f"{path.parent}; leave --resume out to start over"
            ) from error

    def write(self, path: StoragePath) -> None:
        """Write it, all of it or nothing."""
        write_facts(path, vars(self))

    def check_same(self, earlier: RunMarker, folder: StoragePath) -> None:
        """Raise an InputError where the run that was begun in a folder is another than this one."""
        if earlier.layout != self.layout:
            raise OptionError(
                f"--resume: {folder} was written by another version; leave --resume out"
            )
        for key in {**self.config, **earlier.config}:
            now, before = self.config.get(key), earlier.config.get(key)
            if now != before:
                raise OtherRunError(
                    f"--resume: {flag(key)} is {_shown(now)} but was {_shown(before)} in {folder}; "
                    "use the same options, or leave --resume out"
                )
        for path in {**earlier.files, **self.files}:
            if earlier.files.get(path) != self.files.get(path):
                raise OtherRunError(
                    f"--resume: the data has changed since the run began ({path}); leave --resume out"
                )

    @property
    def config_hash(self) -> str:
        """A hash of the options."""
        return _hash([self.layout, self.config])

    @property
    def data_hash(self) -> str:
        """A hash of size and time or version of all files."""
        return _hash(self.files)


def _hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
