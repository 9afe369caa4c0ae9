"""The command ``slicebeam``: until it can end in order, Ctrl-C ends it without a word."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; what is imported takes a third of a second."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from slicebeam.pipelines.commands.cli import main as run

    run()
