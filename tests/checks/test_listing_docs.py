"""The page Markets: its listing file is right, and its table has every key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bot.checks.listing_file import ListedMarket, read_listing_file
from bot.cli.app import call
from tests.calendars import python_with_calendars
from tests.documents import PAGES, blocks, section


def test_the_listing_file_of_the_docs_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = next(block for block in blocks("text", PAGES["markets"]) if block.startswith("markets:"))
    path = tmp_path / "markets.yaml"
    path.write_text(text)
    names = list(read_listing_file(path).markets)
    assert names == ["SHIB", "XAUUSD", "EURUSD", "ES", "SIE.DE"]
    python = python_with_calendars()
    monkeypatch.setenv("BOT_MARKETS_PYTHON", python)
    assert call(["markets", "sessions", str(path)]) == 0
    assert call(["markets", "check", str(path)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in names)


def test_the_table_of_a_listing_has_every_key_with_its_default() -> None:
    table = section("markets", "What a listing says")
    names = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    keys = set(re.findall(r"`([a-z_]+)`", names))
    assert keys == set(ListedMarket.model_fields)
