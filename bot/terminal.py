"""The streams of a command: everything that is written to standard output and error passes `visible`.

`guarded` puts a stream of this module in place of both, so that `click.echo`, `print`, a prompt, a traceback and a
library are all behind one function. What draws on a terminal by itself (colors, a line that is written over) takes
`unguarded` and cleans its texts first: only this module and the console of the log do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from bot.plain_text import one_line, visible

if TYPE_CHECKING:
    from rich.console import Console

NAMES = ("stdout", "stderr")


class GuardedStream:
    """A text stream that writes each text in its visible form. Everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        self.unguarded.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


def unguarded(stream: TextIO) -> TextIO:
    """The stream itself, for a writer that cleans its texts."""
    return stream.unguarded if isinstance(stream, GuardedStream) else stream


@contextmanager
def guarded() -> Iterator[None]:
    """Guard standard output and error until the end of the block. Inside of another such block this changes nothing."""
    before = {name: getattr(sys, name) for name in NAMES}
    for name, stream in before.items():
        if stream is not None and not isinstance(stream, GuardedStream):
            setattr(sys, name, cast(TextIO, GuardedStream(stream)))
    try:
        yield
    finally:
        for name, stream in before.items():
            # Other code may have replaced the stream meanwhile.
            if unguarded(getattr(sys, name)) is stream:
                setattr(sys, name, stream)


def write_over(stream: TextIO, text: str) -> None:
    """Write the text over the last line of a terminal."""
    raw = unguarded(stream)
    raw.write(f"\r\x1b[K{one_line(text)}")
    raw.flush()


def console(stream: TextIO | None = None, *, is_error: bool = False) -> Console:
    """A console of rich that prints texts as they are, without markup, in their visible form."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class VisibleConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(visible(segment.text), segment.style)

    chosen = (sys.stderr if is_error else sys.stdout) if stream is None else stream
    return VisibleConsole(file=unguarded(chosen), highlight=False, markup=False)
