"""The chart library comes out of an installed package, and only the file that is known is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.dashboard import chart_source
from bot.dashboard.documents import Documents
from tests.dashboard.builders import Browser, Daemon, status

ANSWERS = {"/status": status(), "/strategies": {"strategies": []}}


def test_the_installed_package_has_the_known_file_with_its_licence() -> None:
    script = chart_source.chart_script()
    assert script is not None
    assert b"Licensed under Apache License 2.0" in script[:300]
    assert chart_source.STYLE.encode() in script, "the policy allows the style of the library's logo by its hash"


def test_another_file_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart_source, "SHA256", "0" * 64)
    assert chart_source.chart_script() is None
    assert "lightweight-charts.js" not in Documents().static
    monkeypatch.setattr(chart_source, "PACKAGE", "no-such-package")
    assert chart_source.chart_script() is None


async def test_without_the_library_a_page_shows_the_picture_of_the_server(tmp_path: Path) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS), has_charts=False).signed_in()
    page = (await browser.get("/")).text
    assert "lightweight-charts.js" not in page
    assert 'class="canvas"' in page


async def test_the_notice_of_the_library_is_on_every_page_that_uses_it(tmp_path: Path) -> None:
    browser = await Browser(Daemon(tmp_path, ANSWERS)).signed_in()
    assert "TradingView Lightweight Charts™" in (await browser.get("/")).text


def test_no_copy_of_the_library_is_in_the_tree(repository: Path) -> None:
    scripts = sorted(path.name for path in (repository / "bot").rglob("*.js"))
    assert scripts == ["charts.js", "dashboard.js", "sign-in.js", "theme.js"]
