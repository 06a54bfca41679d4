"""The documentation site is built without a warning, needs no other host, and is served on loopback."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from bot.cli.app import call
from bot.cli.docs import builder, docs
from bot.errors import BotError
from bot.extras import install_package
from tests.documents import DOCS, PAGES, ROOT, blocks

WAIT_S = 60
# one for each strategy of the pages
MARKETS = ("BTC", "ETH", "SOL", "XRP", "DOGE", "AVAX", "LINK", "LTC")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("docs") / "site"
    builder.build(made)
    return made


def test_the_menu_has_every_page_once_and_each_is_built(site: Path) -> None:
    menu = [page for _, page in builder.navigation(DOCS / builder.CONFIG)]
    generated = {f"reference/{name}.md" for name in builder.generated()}
    assert len(set(menu)) == len(menu)
    assert set(menu) == {f"{name}.md" for name in PAGES} | generated
    for page in menu:
        title = (site / page).read_text().splitlines()[0].removeprefix("# ")
        assert title in (site / page).with_suffix(".html").read_text()


def test_llms_txt_lists_every_page_with_a_sentence(site: Path) -> None:
    rows = re.findall(r"^- \[(.+?)\]\((.+?)\): (.+\.)$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert {page for _, page, _ in rows} == {page for _, page in builder.navigation(DOCS / builder.CONFIG)}
    for title, page, _ in rows:
        assert (site / page).read_text().startswith(f"# {title}\n")


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    loads = r"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=[\"']?(https?:)?//"
    assert [page.name for page in pages if re.search(loads, page.read_text())] == []


def test_a_broken_link_stops_the_build_and_names_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "docs"
    sources.mkdir()
    text = (DOCS / builder.CONFIG).read_text()
    (sources / builder.CONFIG).write_text(re.sub(r"nav = \[.*?\n\]", 'nav = ["index.md"]', text, flags=re.DOTALL))
    (sources / "index.md").write_text("# Start\n\nSee [the rest](rest.md).\n")
    monkeypatch.setattr(builder, "SOURCES", sources)
    monkeypatch.setattr(builder, "generated", dict)
    with pytest.raises(BotError, match=r"(?s)page does not exist.*index\.md:3"):
        builder.build(tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_without_the_builder_or_the_site_the_command_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "SITE", tmp_path / "site")
    assert call(["docs"]) == 4
    assert "run `make docs`" in capsys.readouterr().err
    monkeypatch.setattr(builder, "find_spec", lambda name: None)
    assert call(["docs", "--build"]) == 4
    assert install_package("zensical") in capsys.readouterr().err


def test_the_server_refuses_other_hosts_and_lets_no_page_load_from_them(site: Path) -> None:
    client = TestClient(docs.application(site), base_url="http://127.0.0.1")
    page = client.get("/guides/index.html")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    assert "http" not in page.headers["Content-Security-Policy"]
    assert client.get("/index.html", headers={"Host": "evil.example"}).status_code == 400
    assert client.get("/../../pyproject.toml").status_code == 404


def test_the_server_prints_its_address_and_ends_with_ctrl_c(site: Path) -> None:
    code = f"from pathlib import Path; from bot.cli.docs.docs import serve; serve(Path({str(site)!r}), 0)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[0]
            assert "Bracketbot documentation" in httpx.get(address, timeout=WAIT_S).text
            server.send_signal(signal.SIGINT)
            assert server.wait(WAIT_S) == 0
        finally:
            server.kill()


def test_every_strategy_of_the_pages_passes_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strategies = [text for name in sorted(PAGES) for text in blocks("python", PAGES[name]) if "(Strategy)" in text]
    names = [re.findall(r"^class (\w+)\(Strategy\)", text, re.MULTILINE) for text in strategies]
    assert len(names) >= 6
    folder = tmp_path / "strategies"
    folder.mkdir()
    rows = []
    for n, (text, (name,)) in enumerate(zip(strategies, names, strict=True)):
        (folder / f"page_{n}.py").write_text(text)
        rows.append(
            f'  - {{name: page-{n}, use: "page_{n}:{name}", markets: [{MARKETS[n]}], interval: 1m, budget_usd: 1000}}'
        )
    (tmp_path / "bot.yaml").write_text("account: {base_url: embedded}\ndead_man: {}\nstrategies:\n" + "\n".join(rows))
    assert call(["check", str(tmp_path / "bot.yaml")]) == 0, capsys.readouterr().err
