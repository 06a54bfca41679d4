"""Prints the lines and the events of a run on standard output, and stops the run if nobody reads it any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from bot.cli.common.event_lines import Counts, Narrator, line_writer
from bot.cli.run.dashboard_process import Served, served_line


class RunOutput:
    """The output of `bot demo` and `bot paper`.

    `stop` is set if the reader of the output has ended (`bot demo | head`).
    """

    def __init__(self, stop: asyncio.Event, *, as_json: bool) -> None:
        self.as_json = as_json
        # why nothing more is printed
        self.unheard: OSError | None = None
        self._stop = stop
        self._narrator = Narrator((lambda _line, _style: None) if as_json else self.line)
        self._write = _plain if as_json else line_writer(sys.stdout)

    @property
    def counts(self) -> Counts:
        """How many events of each kind were shown."""
        return self._narrator.counts

    @property
    def is_lost(self) -> bool:
        """True if output was lost, for example on a full disk. A reader that has ended does not count."""
        return self.unheard is not None and not isinstance(self.unheard, BrokenPipeError)

    def event(self, event: Mapping[str, Any]) -> None:
        """Print a log event: as a line, or as JSON."""
        self._narrator(event)
        if self.as_json:
            self.data(event)

    def data(self, data: Mapping[str, Any]) -> None:
        """Print one JSON object."""
        self.line(json.dumps(dict(data), default=str))

    def dashboard(self, served: Served | str) -> None:
        """Print the address of the dashboard, or why there is none."""
        if not self.as_json:
            self.line(served_line(served, is_terminal=sys.stdout.isatty()))
        elif not isinstance(served, str):
            self.data({"event": "dashboard.ready", "address": served.address})

    def line(self, line: str, style: str | None = None) -> None:
        """Print a line."""
        if self.unheard is not None:
            return
        write: Callable[[str, str], None] = _plain if style is None else self._write
        try:
            write(line, style or "")
        except OSError as error:
            self.unheard = error
            # Python flushes the rest when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._stop.set()
            with contextlib.suppress(OSError):
                note(f"Stopping (standard output: {error.strerror or error}).")


def note(text: str) -> None:
    """Print a line on standard error."""
    click.echo(text, err=True)


def _plain(line: str, _style: str) -> None:
    click.echo(line)
