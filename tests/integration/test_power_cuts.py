"""The power goes at any moment: of what was written since the last sync any part is there, torn and in any order. No
intent that could have left is forgotten.

The file system is a model of a bad one: what changed on the two files since the last commit that was synced, cut in
sectors, of which any subset may have reached the disk. Works on every machine; that the sync is really called is looked
at by strace in test_kill_points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bot.runtime.journal.journal import Journal
from bot.runtime.journal.opening import open_journal
from bot.runtime.model.intents import INTENT_MOVES, Intent, intent_key
from tests.faulty_port import ADDRESS

SECTOR = 512
INTENTS = 12
SUFFIXES = ("", "-wal")


@dataclass(frozen=True)
class Disk:
    """The files of a journal, and what it held by then: intent -> state."""

    files: tuple[bytes, ...]
    known: dict[str, str]


def _intent(n: int, chance: Random) -> Intent:
    key = intent_key(address=ADDRESS, epoch=0, strategy="s", market="BTC", trigger=f"bar:{n}", ordinal=0, leg="order")
    body = b'{"market":"BTC","side":"long","usdAmount":100,"note":"' + b"x" * chance.choice([10, 300, 3_000]) + b'"}'
    return Intent(
        id=key,
        strategy="s",
        market="BTC",
        action="open",
        path="direct",
        trigger=f"bar:{n}",
        ordinal=0,
        leg="order",
        epoch=0,
        body=body,
        not_after_ms=10**13,
        opened_ms=n,
        notional_usd=Decimal(100),
    )


def _files(path: Path) -> tuple[bytes, ...]:
    return tuple(
        part.read_bytes() if (part := path.with_name(path.name + suffix)).exists() else b"" for suffix in SUFFIXES
    )


def _history(path: Path, chance: Random) -> Iterator[Disk]:
    """The disk after each commit of a busy journal."""
    journal = open_journal(path, address=ADDRESS)
    # A checkpoint syncs in between; the log alone is cut here.
    journal.db.conn.execute("PRAGMA wal_autocheckpoint=0")
    assert journal.db.conn.execute("PRAGMA synchronous").fetchone()[0] == 2
    known: dict[str, str] = {}
    yield Disk(_files(path), dict(known))
    for n in range(INTENTS):
        for moved in _moves(journal, _intent(n, chance), chance):
            known[moved.id] = moved.state
            yield Disk(_files(path), dict(known))
    journal.db.close()


def _moves(journal: Journal, intent: Intent, chance: Random) -> Iterator[Intent]:
    assert journal.decided([intent], states={"s": '{"n":1}'}, bars=[("BTC", "1m", intent.opened_ms)]) == [intent]
    yield intent
    if chance.random() < 0.5:
        intent = journal.intents.planned(intent, "cft_token", 10**13, now_ms=1)
        yield intent
    for _ in range(chance.randint(1, 3)):
        intent = journal.intents.sending(intent, now_ms=2)
        yield intent
        journal.intents.attempt_ended(intent, "unknown", code="read_error", order_submitted="unknown")
        yield intent
    if chance.random() < 0.7:
        yield journal.intents.accept(intent, "trd_1", now_ms=3)


def _cut(before: bytes, after: bytes, chance: Random) -> bytes:
    """What is on the disk when some sectors of a change have reached it: none, all, the first ones, or any; the last
    of them torn.
    """
    size = max(len(before), len(after))
    torn = bytearray(before)
    changed = [at for at in range(0, size, SECTOR) if before[at : at + SECTOR] != after[at : at + SECTOR]]
    match chance.randrange(4):
        case 0:
            kept = changed[: chance.randint(0, len(changed))]
        case 1:
            kept = changed[chance.randint(0, len(changed)) :]
        case _:
            kept = [at for at in changed if chance.random() < 0.5]
    for at in kept:
        sector = after[at : at + SECTOR]
        if len(torn) < at + len(sector):
            torn.extend(bytes(at + len(sector) - len(torn)))
        if at == kept[-1] and chance.random() < 0.5:
            sector = sector[: chance.randrange(len(sector) + 1)]
        torn[at : at + len(sector)] = sector
    return bytes(torn)


def _reaches(old: str, new: str) -> bool:
    """Whether the table of moves leads from one state to the other, or stays."""
    return old == new or new in INTENT_MOVES[old]


@pytest.mark.soak(worlds=120, full=5_000)
def test_no_power_cut_forgets_an_intent(tmp_path: Path, worlds: int, base_seed: int) -> None:
    """A world is one cut. `make soak` makes thousands."""
    lost_tail = 0
    disks: list[Disk] = []
    for seed in range(base_seed, base_seed + worlds):
        chance = Random(f"cut {seed}")
        # Another history now and then.
        if (seed - base_seed) % 60 == 0:
            for leftover in tmp_path.glob("history.db*"):
                leftover.unlink()
            disks = list(_history(tmp_path / "history.db", chance))
        k = chance.randrange(len(disks) - 1)
        before, after = disks[k], disks[k + 1]
        path = tmp_path / "cut.db"
        for suffix, old, new in zip(SUFFIXES, before.files, after.files, strict=True):
            path.with_name(path.name + suffix).write_bytes(_cut(old, new, chance))
        lost_tail += _judge(path, before, after, seed)
        for leftover in tmp_path.glob("cut.db*"):
            leftover.unlink()
    assert lost_tail > worlds // 4, "no cut has cut anything"


def _judge(path: Path, before: Disk, after: Disk, seed: int) -> bool:
    """Whether the commit under way was lost; every one before it is there."""
    journal = open_journal(path, address=ADDRESS)
    found: dict[str, Any] = {row["id"]: row["state"] for row in journal.db["intents"].rows}
    for key, state in before.known.items():
        assert key in found, f"cut {seed}: {key} was {state} and is forgotten"
        assert _reaches(state, found[key]), f"cut {seed}: {key} was {state} and is {found[key]}"
    assert set(found) <= set(after.known), f"cut {seed}: an intent that nobody wrote"
    for intent in journal.intents.live():
        if intent.state == "sending":
            assert journal.intents.is_ambiguous(replace(intent)) or intent.attempts, (
                f"cut {seed}: no attempt of {intent.id}"
            )
    assert journal.db.conn.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    journal.db.close()
    return found != after.known


def test_a_journal_that_syncs_less_is_caught(tmp_path: Path) -> None:
    """Test of the test: with synchronous=NORMAL nothing is synced at a commit, and any tail of them may be gone."""
    chance = Random(1)
    disks = list(_history(tmp_path / "history.db", chance))
    path = tmp_path / "cut.db"
    forgotten = 0
    for _ in range(30):
        # One sync, and many commits after it.
        first, last = disks[5], disks[-1]
        for suffix, old, new in zip(SUFFIXES, first.files, last.files, strict=True):
            path.with_name(path.name + suffix).write_bytes(_cut(old, new, chance))
        journal = open_journal(path, address=ADDRESS)
        found = {row["id"] for row in journal.db["intents"].rows}
        journal.db.close()
        forgotten += not set(disks[-2].known) <= found
        for leftover in tmp_path.glob("cut.db*"):
            leftover.unlink()
    assert forgotten > 10
