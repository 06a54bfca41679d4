"""A set of texts that only grows and takes 8 bytes per text; a Python set takes over a hundred.

Sorted runs of 8-byte hashes: runs of equal length are merged, up to RUN texts (a log-structured merge). Two texts have
the same hash with probability 2^-64, so a hit is practically certain and a miss is certain. The state stores `Runs`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

# texts that are sorted together
BATCH: Final = 512
# A run of this many texts is not merged again. A merge allocates 60 bytes per text while callers wait: 2 MB and 4 ms
# for this length, and twice that for each doubling. A lookup in a million texts searches 31 such runs, which takes
# about 40 us.
RUN: Final = 32_768

Runs = list[bytes]


def add(runs: Runs, texts: Iterable[str]) -> None:
    """Add texts. Add many at once, because each call sorts, and merges runs of equal length, up to RUN texts."""
    fresh = array("Q", sorted({_hash(text) for text in texts}))
    if not fresh:
        return
    while runs and len(runs[-1]) <= min(len(fresh), RUN - 1) * fresh.itemsize:
        fresh = array("Q", sorted([*array("Q", runs.pop()), *fresh]))
    runs.append(fresh.tobytes())


def merged(runs: Runs, texts: Iterable[str]) -> Runs:
    """All texts as one run, equal for equal sets."""
    hashes = {text_hash for run in runs for text_hash in memoryview(run).cast("Q")} | {_hash(text) for text in texts}
    return [array("Q", sorted(hashes)).tobytes()] if hashes else []


def has(runs: Runs, text: str) -> bool:
    """True if this text was added."""
    if not runs:
        return False
    wanted = _hash(text)
    for run in runs:
        hashes = memoryview(run).cast("Q")
        at = bisect_left(hashes, wanted)
        if at < len(hashes) and hashes[at] == wanted:
            return True
    return False


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


class TextSet:
    """The same set as an object, for texts that are added one by one."""

    def __init__(self) -> None:
        self._runs: Runs = []
        self._newest: set[str] = set()

    def add(self, text: str) -> None:
        self._newest.add(text)
        if len(self._newest) >= BATCH:
            add(self._runs, self._newest)
            self._newest = set()

    def __contains__(self, text: str) -> bool:
        return text in self._newest or has(self._runs, text)
