"""The chart library comes out of an installed package, and only the file that is known is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot import chart_library
from bot.dashboard.documents import PageFiles
from tests.dashboard.builders import Browser, Daemon, status

ANSWERS = {"/status": status(), "/strategies": {"strategies": []}}


def test_the_installed_package_has_the_known_file_with_its_licence() -> None:
    script = chart_library.chart_script()
    assert script is not None
    assert b"Licensed under Apache License 2.0" in script[:300]
    assert chart_library.STYLE.encode() in script, "the policy allows the style of the library's logo by its hash"


def test_another_file_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart_library, "SHA256", "0" * 64)
    assert chart_library.chart_script() is None
    assert "lightweight-charts.js" not in PageFiles().static
    monkeypatch.setattr(chart_library, "PACKAGE", "no-such-package")
    assert chart_library.chart_script() is None


async def test_without_the_library_a_page_shows_the_picture_of_the_server(tmp_path: Path) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS), has_charts=False).signed_in()
    page = (await browser.get("/")).text
    assert "lightweight-charts.js" not in page
    assert 'class="canvas"' in page


async def test_the_notice_of_the_library_is_on_every_page_that_uses_it(tmp_path: Path) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS)).signed_in()
    assert "TradingView Lightweight Charts™" in (await browser.get("/")).text


def test_no_copy_of_the_library_is_in_the_tree(repository: Path) -> None:
    scripts = sorted((repository / "bot").rglob("*.js"))
    assert len(scripts) > 3
    for script in scripts:
        assert b"@license" not in script.read_bytes(), "a file of a library"
        assert script.stat().st_size < 60_000
