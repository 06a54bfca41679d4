"""A set of texts that keeps each in 8 bytes."""

from __future__ import annotations

from random import Random

import pytest

from bot.venue.model import text_set


def test_exactly_the_added_texts_are_found(base_seed: int) -> None:
    chance = Random(base_seed)
    runs: text_set.Runs = []
    put: set[str] = set()
    for _ in range(200):
        some = [f"key {chance.randrange(20_000)}" for _ in range(chance.randrange(100))]
        text_set.add(runs, some)
        put.update(some)
    assert [text for text in map("key {}".format, range(20_000)) if text_set.has(runs, text)] == sorted(
        put, key=lambda text: int(text[4:])
    )
    assert sum(map(len, runs)) < 12 * len(put)
    assert [len(run) for run in runs] == sorted((len(run) for run in runs), reverse=True)


def test_a_long_run_is_not_merged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_set, "RUN", 64)
    runs: text_set.Runs = []
    for at in range(0, 10_000, 16):
        text_set.add(runs, map("key {}".format, range(at, at + 16)))
    assert {len(run) // 8 for run in runs[:-4]} == {64}
    assert all(text_set.has(runs, f"key {n}") for n in range(10_000))
    assert not text_set.has(runs, "key 10000")


def test_the_same_texts_make_the_same_run_in_any_order() -> None:
    texts = [f"k{n}" for n in range(1_000)]
    one: text_set.Runs = []
    for at in range(0, 1_000, 37):
        text_set.add(one, texts[at : at + 37])
    assert (
        text_set.merged(one, [])
        == text_set.merged([], texts)
        == text_set.merged(text_set.merged(one, texts[:50]), texts[900:])
    )
    assert text_set.merged([], []) == []


def test_texts_that_are_added_one_by_one_are_found() -> None:
    days = text_set.TextSet()
    for n in range(3 * text_set.BATCH + 7):
        days.add(f"acc {n}")
    assert all(f"acc {n}" in days for n in range(3 * text_set.BATCH + 7))
    assert "acc -1" not in days
