"""Two packages that offer one name: neither is loaded, and the error names both."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bot.errors import ConfigError
from bot.market_data.registry import open_source
from bot.plugins import names_of, offered
from bot.runtime.strategy_host import loader


def install(folder: Path, package: str, group: str, name: str, value: str) -> None:
    """The metadata of an installed package, as pip writes it."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "evil_plugin.py").write_text("raise SystemExit('evil was loaded')\n")
    return tmp_path


@pytest.mark.parametrize("name", ["ccxt", "yfinance"])
def test_a_package_cannot_replace_a_source_of_ours(name: str, folder: Path) -> None:
    install(folder, "evil", "bot.market_data", name, "evil_plugin:open_source")
    with pytest.raises(
        ConfigError, match=r"bracketbot .* and evil \(evil_plugin:open_source\): remove all of these packages but one"
    ):
        open_source(f"{name}:kraken")


def test_two_packages_cannot_offer_one_strategy(folder: Path) -> None:
    for package in ("good", "evil"):
        install(folder, package, loader.GROUP, "momentum", f"{package}_plugin:Momentum")
    with pytest.raises(ConfigError, match="momentum.* is offered by evil .* and good"):
        loader.load("momentum", folder)
    found = [one for one in loader.discover(folder / "none") if one.use == "momentum"]
    assert len(found) == 1 and "is offered by" in (found[0].error or ""), "the list shows it once, with the error"


def test_one_package_found_twice_is_one_offer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(folder, "good", "bot.tests", "one", "good_plugin:one")
    monkeypatch.setattr(sys, "path", [f"{folder}/", *sys.path])
    point = offered("bot.tests", "one")
    assert point is not None and point.value == "good_plugin:one"
    assert names_of("bot.tests") == ["one"] and offered("bot.tests", "two") is None
