"""What is asked of a run besides its configuration."""

from __future__ import annotations

from dataclasses import dataclass

LOG_FORMATS = ("text", "json")


@dataclass(frozen=True)
class Asked:
    """What is asked of a run besides its configuration: it does not change what is found.

    Attributes
    ----------
    resume : go on where a stopped run was; begin where there is none, do nothing where it published
    as_json : print the summary as JSON on stdout
    quiet : print nothing but errors
    explain : id or text of the slice whose test is explained
    fail_on : ``worse`` or None
    log_format : ``text`` or ``json``
    dry_run : say what would be done, and do nothing
    single_job : send the whole search as one job
    template : folder for a template of the search, which is not run
    allow_http : send keys over http to other machines
    """

    resume: bool = False
    as_json: bool = False
    quiet: bool = False
    explain: str | None = None
    fail_on: str | None = None
    log_format: str = "text"
    dry_run: bool = False
    single_job: bool = False
    template: str | None = None
    allow_http: bool = False


# The flags that are no part of a configuration, by their names in a file.
ASKED = {"json": "as_json"} | {
    name: name
    for name in (
        *("resume", "quiet", "explain", "fail_on", "log_format"),
        *("dry_run", "single_job", "template", "allow_http"),
    )
}
