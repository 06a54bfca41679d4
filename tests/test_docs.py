"""The pages of docs/: links lead somewhere, figures stand in tests, and modules are named with words of the
glossary.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.errors import CODES
from bot.runtime.alerts.messages import TEMPLATES
from bot.runtime.model.intents import INTENT_MOVES
from bot.service.bodies.responses import CONFLICTS
from bot.testing.sandbox import Sandbox
from bot.venue.model import state
from tests.documents import DOCS, PAGES, README, ROOT, blocks, section

FILES = [README, ROOT / "AGENTS.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    for link in LINK.findall(without_code(path.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_readme_links_to_every_page_and_the_index_of_guides_to_every_guide() -> None:
    linked = {link.split("#")[0] for link in LINK.findall(README.read_text())}
    guides = {f"docs/guides/{link}" for link in LINK.findall(PAGES["guides/index"])}
    assert {f"docs/{name}.md" for name in PAGES} <= linked | guides
    assert "docs/guides/index.md" in linked


def test_every_figure_of_the_venue_rules_stands_in_a_test_of_the_venue() -> None:
    tests = "\n".join(file.read_text() for file in sorted((ROOT / "tests" / "venue").glob("*.py")))
    figures = re.findall(r"`([\d.@][\d.@_ -]*|-\d[\d.]*)`", PAGES["venue-rules"])
    assert len(figures) > 50
    assert [one for one in figures if not re.search(rf"(?<![\d.]){re.escape(one)}(?![\d.]*\d)", tests)] == []


PLACES = re.findall(
    r"`([\w./-]+\.(?:py|md|toml))(?:: (\w+))?`", "".join(PAGES[name] for name in ("how-to-add", "venue-rules"))
)
LOOKED_UP = re.findall(
    r"`([\w./]+\.(?:py|toml))(?:: (\w+))?` \|$", section("architecture", "Where to look"), re.MULTILINE
)


@pytest.mark.parametrize(("path", "name"), sorted({*PLACES, *LOOKED_UP}))
def test_a_place_that_the_docs_name_is_there(path: str, name: str) -> None:
    assert not name or re.search(
        rf"^(?:async )?(?:def|class) {name}\b|^    (?:async )?def {name}\b", (ROOT / path).read_text(), re.MULTILINE
    )
    assert (ROOT / path).is_file()


def test_the_ten_questions_of_the_architecture_have_a_place_each() -> None:
    rows = [line for line in section("architecture", "Where to look").splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 10
    assert all(re.search(r"(\)|`) \|$", row) for row in rows)


def test_how_to_add_names_every_module_of_the_venue_that_makes_an_event() -> None:
    made = {
        path
        for path in (ROOT / "bot" / "venue").rglob("*.py")
        if re.search(r"^ +emit\(|order_changed\(", path.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"`(bot/venue/[\w/]+\.py)`", section("how-to-add", "An event field")))
    assert len(made) > 5
    assert named == {path.relative_to(ROOT).as_posix() for path in made}


def test_every_rule_of_the_venue_names_its_modules_and_its_tests() -> None:
    parts = re.split(r"^## ", PAGES["venue-rules"], flags=re.MULTILINE)[1:]
    assert all("\nModules: `bot/venue/" in part and "\nTests: `tests/venue/" in part for part in parts)


def test_the_error_codes_of_the_decisions_are_those_of_the_code() -> None:
    text = section("decisions", "Requests and answers")
    rows = re.findall(r"^\| `(\w+)` \| (\d+)[^|]* \| (yes|no)[^|]* \|$", text, re.MULTILINE)
    assert {code: (int(status), again == "yes") for code, status, again in rows} == {
        code: (row.status, row.retryable) for code, row in CODES.items()
    }


def test_each_reason_of_an_idempotency_conflict_has_its_status() -> None:
    (line,) = re.findall(r"^`details\.reason` of an .*?\.$", PAGES["decisions"], re.MULTILINE | re.DOTALL)
    assert dict(re.findall(r"`(\w+)` \((\d+)", line)) == {name: str(status) for name, (status, _) in CONFLICTS.items()}


def test_the_limits_of_the_decisions_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| ([\w ]+) \| (\d+) \|$", section("decisions", "Orders"), re.MULTILINE)
    assert {name: int(number) for name, number in rows} == {
        "Open orders": state.OPEN_ORDERS_MAX,
        "Guardians": state.GUARDIANS_MAX,
        "Keys": state.KEYS_MAX,
        "Webhooks": state.WEBHOOKS_MAX,
    }


def test_the_states_of_an_intent_in_the_decisions_are_those_of_the_code() -> None:
    sentence = " ".join(section("decisions", "The daemon").split()).split("The direct path")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == set(INTENT_MOVES)


def test_the_routes_of_the_docs_are_those_of_the_service(sandbox: Sandbox) -> None:
    paths = sandbox.client().get("/openapi.json").json()["paths"]
    served = {
        f"{method.upper()} {path}" for path, methods in paths.items() if path.startswith("/v1/") for method in methods
    }
    assert set(re.findall(r"`([A-Z]+ /v1/[^`]+)`", section("sandbox-and-http-api", "Routes"))) == served


def test_the_kinds_of_faults_in_the_docs_are_those_of_the_sandbox(sandbox: Sandbox) -> None:
    row = next(line for line in PAGES["sandbox-and-http-api"].splitlines() if "/faults`" in line)
    for kind in re.findall(r"`([a-z]+(?:_[a-z0-9]+)*)`", row.split("}`:")[1].split("`op`")[0]):
        sandbox.fault("*", kind, ms=1 if kind == "delay" else None)


def commands(page: str, heading: str) -> list[list[str]]:
    """The `bot` commands of a section's text block, in their order."""
    (block,) = blocks("text", section(page, heading))
    lines = [shlex.split(part, comments=True) for line in block.splitlines() for part in line.split(" && ")]
    return [words for words in lines if words and words[0] == "bot"]


def test_the_project_of_the_tutorial_can_be_made_checked_and_backtested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = commands("tutorial", "3. Begin your own project") + commands("tutorial", "4. Test it on past prices")
    for words in lines:
        if words[1] == "run":
            continue
        # days of candles; the test needs no month
        words = ["10" if word == "30" else word for word in words]
        assert call(words[1:]) == 0, capsys.readouterr().err
        if words[1] == "init":
            monkeypatch.chdir(tmp_path / words[2])
    assert {words[1] for words in lines} == {"init", "check", "run", "new-strategy", "data", "backtest"}
    assert list(Path("runs").glob("*/summary.json"))


def test_the_architecture_lists_every_folder_of_daemon_service_and_backtest() -> None:
    listed = re.findall(r"^\| `(bot/\w+/\w+)/` \|", PAGES["architecture"], re.MULTILINE)
    packages = [
        path.parent for top in ("runtime", "service", "backtest") for path in (ROOT / "bot" / top).glob("*/__init__.py")
    ]
    folders = {str(path.relative_to(ROOT)) for path in packages}
    assert len(set(listed)) == len(listed)
    assert set(listed) == folders, "a folder is missing in docs/architecture.md"


def test_every_situation_says_what_you_see_what_the_daemon_does_and_what_you_do() -> None:
    for situation in PAGES["when-something-is-wrong"].split("\n### ")[1:]:
        assert re.findall(r"^- \*\*(.+?):\*\*", situation, re.MULTILINE) == ["You see", "The daemon", "You"], situation


def test_the_notices_of_the_situations_are_kinds_of_notices() -> None:
    families = {kind.split(".")[0] for kind in TEMPLATES}
    named = re.findall(r"`([a-z]+)\.([a-z_]+)`", PAGES["when-something-is-wrong"])
    kinds = {f"{family}.{name}" for family, name in named if family in families}
    assert kinds and kinds <= set(TEMPLATES)


# ── Words of module names ───────────────────────────────────────────────────────────────────────────────────────────

GLOSSARY = re.findall(r"^\| ([^|]+?) \| [^|]+ \| `([^|`]+)` \|$", PAGES["glossary"], re.MULTILINE)
TERMS = [term for term, _module in GLOSSARY]

# Standard words of programming and protocols, and plain English that a module name may use beside the terms of the
# glossary.
_PLAIN = """
admission extra info interface raw socket visibility
api python ranking accept acceptor access acting action activity adapter address alert answer app apply approval \
arithmetic assembly assertion attempt auth backup base bootstrap
builder call chart chat cli client clock column common condition config connection consumer context control cors count \
counter crash credential cron
data database date deadline delivery demo descriptor device diff docs doctor document draft driver embedded encryption \
engine equity error evidence
example exchange unread
execution executor explain fast file firing flag fold folder format formatting frame handle header health history hour \
html http identity importer
index indicator init injection input jit json judgment latency layout library lifecycle line loader local lock log \
logging loss machine mailbox main mcp
memory message model money naked name named notebook notifier number open openapi opening operate option output \
outside \
overview ownership package paging param
path pending
phone plain plane plugin policy pool portfolio pre process progress public quality query queue read reader \
reconciliation record recorded reference registry
rejection repair report reporting request resource response restore result resync review route row rule run runner \
runtime schedule scheduler schema
search secret security seen send sender server service set setting shared shutdown sign signing simulated simulator \
sizing slot source stamp start startup
statistic status stepper store strict suggestion summary supervision synthetic systemd table tail telegram template \
terminal testing text timeline tool trace
trading type unit
upkeep v1 value version vocabulary wait wakeup watch
wire word worker write writer
"""
PLAIN = frozenset(_PLAIN.split())
ENDINGS = (
    ("", ""),
    ("s", ""),
    ("es", ""),
    ("ies", "y"),
    ("er", ""),
    ("er", "e"),
    ("ing", ""),
    ("ation", "e"),
    ("al", ""),
)


def is_known(word: str, terms: set[str]) -> bool:
    stems = {word.removesuffix(ending) + instead for ending, instead in ENDINGS if word.endswith(ending)}
    return bool(stems & (PLAIN | terms))


def test_the_glossary_has_each_term_once_in_alphabetical_order() -> None:
    keys = [term.lower() for term in TERMS]
    assert len(set(keys)) == len(keys) > 100
    assert keys == sorted(keys)


@pytest.mark.parametrize(("term", "module"), GLOSSARY, ids=TERMS)
def test_the_module_of_a_term_holds_the_term(term: str, module: str) -> None:
    """In its path or its text, in any of the word's forms:

    `reconcile` in reconciler.py, `dead-man switch` as dead_man_switch.
    """
    held = f"{module}\n{(ROOT / 'bot' / module).read_text()}"
    stems = [re.escape(word[: max(4, len(word) - 3)]) for word in re.split(r"[ -]", term)]
    assert re.search(r"(?<![A-Za-z])" + r"\w*[\s_/-]*".join(stems), held, re.IGNORECASE)


def test_every_row_of_the_glossary_has_a_module() -> None:
    assert len(GLOSSARY) == len(re.findall(r"^\| ", PAGES["glossary"], re.MULTILINE)) - 1


def test_every_module_is_named_with_words_of_the_glossary_or_plain_english() -> None:
    terms = {word for term in TERMS for word in re.findall(r"\w+", term.lower())}
    modules = [path.relative_to(ROOT / "bot") for path in sorted((ROOT / "bot").rglob("*.py"))]
    unknown = {
        f"{path}: {word}"
        for path in modules
        if path.parts[0] != "examples"
        for part in path.with_suffix("").parts
        for word in part.strip("_").split("_")
        if not is_known(word, terms)
    }
    assert sorted(unknown) == [], "use a word of docs/glossary.md, or add the term there with its meaning"


# Home-made words that the glossary has replaced.
COINAGES = (
    "beater",
    "courier",
    "crew",
    "doorbell",
    "reseat",
    "salvage",
    "seat",
    "seats",
    "stranger",
    "strangers",
    "untold",
    "waves",
)


@pytest.mark.parametrize("word", COINAGES)
def test_a_replaced_word_names_no_module_and_stands_in_no_page(word: str) -> None:
    terms = {part for term in TERMS for part in re.findall(r"\w+", term.lower())}
    assert not is_known(word, terms)
    assert [path.name for path in FILES if re.search(rf"\b{word}\b", path.read_text(), re.IGNORECASE)] == []
