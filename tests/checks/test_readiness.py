"""The checklist of `bot ready`: each line with its evidence missing, old, bad and good, and the grade that follows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bot.checks import readiness_lines
from bot.checks.config_check import checked_without_secrets
from bot.checks.evidence import FILE, KEPT, Evidence, EvidenceDamaged, changes, keep_evidence, read_evidence, version_of
from bot.checks.readiness import GRADES, RULES, Readiness, ReadinessLine, grade_of
from bot.checks.readiness_lines import ReadinessCase, ServiceFacts, is_play_money, readiness_of
from bot.clock import DAY_MS, iso
from bot.config import Settings
from bot.runtime.alerts.health import EXPIRES_SOON_MS
from bot.runtime.control_plane.alarm_watch import LAST_BACKUP
from bot.runtime.journal import proof_files
from bot.runtime.journal.opening import open_journal
from bot.runtime.strategy_host import fingerprints
from bot.wire.exchange_facts import ExchangeFact
from tests.documents import section

NOW_MS = 1_764_288_000_000
CONFIG = """\
name: mine
state_dir: state
account: {base_url: "https://trading.example", api_key: "${env:KEY}"}
dead_man: {heartbeat_seconds: 300, on_miss: flatten}
notify: {urls: ["${env:FIRST}", "${env:SECOND}"]}
strategies_dir: %s
strategies:
  - {name: trend, use: "trend:Trend", markets: [BTC], interval: 1h, budget_usd: 500, daily_loss_usd: 50}
"""
BACKTEST = {
    "folder": "runs/mine",
    "data": ["data"],
    "days": 400.0,
    "trades": 120,
    "netUsd": 80.0,
    "costsUsd": 20.0,
    "worstDayUsd": -40.0,
    "startUsd": 10_000.0,
}
WALK = {"data": [], "chosen": ["trend.fast_bars"], "windows": 3, "days": 90, "probability": 0.96, "returnPct": 4.0}
DRILL = {"data": [], "ground": "a", "seed": 1, "worlds": 100, "failed": [], "silenced": 9}
GOOD = ServiceFacts(environment="mainnet", scopes=("read", "trade"), skew_ms=100)


class Case:
    """A config with evidence of each kind; `version` is that of another config if a row asks for old evidence."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self.config = folder / "mine.yaml"
        self.config.write_text(CONFIG % (repository / "strategies"))
        self.settings: Settings = checked_without_secrets(self.config)[0]
        (folder / "state").mkdir(mode=0o700, exist_ok=True)
        self.pieces: list[Evidence] = []
        self.service = GOOD
        self.addresses: Sequence[tuple[str, str | None]] = (("${env:FIRST}", "k1"), ("${env:SECOND}", "k2"))

    def changed(self, text: str, instead: str) -> None:
        before = self.config.read_text()
        assert text in before
        self.config.write_text(before.replace(text, instead))
        self.settings = checked_without_secrets(self.config)[0]

    def add(self, kind: Any, facts: Mapping[str, Any], at_ms: int = NOW_MS) -> None:
        self.pieces.append(Evidence(kind, at_ms, version_of(self.settings), facts))

    def readiness(self) -> Readiness:
        case = ReadinessCase(self.config, self.settings, self.pieces, self.service, NOW_MS, self.addresses)
        return readiness_of(case)

    def line(self, name: str) -> ReadinessLine:
        return next(line for line in self.readiness().lines if line.name == name)


@pytest.fixture
def case(tmp_path: Path, repository: Path) -> Case:
    return Case(tmp_path, repository)


def sweep(case: Case, deflated: float) -> dict[str, Any]:
    trials = [{"version": version_of(case.settings), "deflated": deflated}]
    return {"study": "mine", "data": [], "count": 20, "trials": trials}


def prove(case: Case, days: int, *, unknown: int = 0, is_marked: bool = True) -> None:
    """Proofs of so many days, and a journal that says which config was in force."""
    state = case.settings.state_dir
    with closing(open_journal(state / "journal.db", address="0x" + "ab" * 20)) as journal:
        mark = fingerprints.mark_of(case.settings, fingerprints.sources_of(case.settings))
        fingerprints.note_run(journal, mark, at_ms=NOW_MS - 40 * DAY_MS if is_marked else NOW_MS, epoch=0)
    for back in range(days):
        from_ms = NOW_MS - (back + 2) * DAY_MS
        causes = {"unknown": 1} if back < unknown else {"timing": 3}
        span = {"fromMs": from_ms, "toMs": from_ms + DAY_MS, "isWhole": True}
        proof_files.write_proof(state, {"format": 1, "day": iso(from_ms)[:10], "causes": causes, **span})


def noted_backup(case: Case, at_ms: int) -> None:
    (case.settings.state_dir / LAST_BACKUP).write_text(json.dumps({"at_ms": at_ms}))


# line, kind, what the evidence has instead of the good value, share of the points
VALUES = [
    ("tested period", "backtest", {}, 1),
    ("tested period", "backtest", {"days": 364.9}, 0.5),
    ("tested period", "backtest", {"days": 89.9}, 0),
    ("trades", "backtest", {"trades": 100}, 1),
    ("trades", "backtest", {"trades": 99}, 0.5),
    ("trades", "backtest", {"trades": 29}, 0),
    ("cost share", "backtest", {"netUsd": 75.0, "costsUsd": 25.0}, 1),
    ("cost share", "backtest", {"netUsd": 50.0, "costsUsd": 50.0}, 0.5),
    ("cost share", "backtest", {"netUsd": 10.0, "costsUsd": 50.0}, 0),
    ("cost share", "backtest", {"netUsd": -60.0, "costsUsd": 50.0}, 0),
    ("worst day", "backtest", {"worstDayUsd": 0.0}, 1),
    ("worst day", "backtest", {"worstDayUsd": -50.0}, 0.5),
    ("worst day", "backtest", {"worstDayUsd": -50.1}, 0),
    ("walk-forward", "walk_forward", {}, 1),
    ("walk-forward", "walk_forward", {"probability": 0.8}, 0.5),
    ("walk-forward", "walk_forward", {"probability": 0.5}, 0),
    ("drill", "drill", {}, 1),
    ("drill", "drill", {"worlds": 20}, 0.5),
    ("drill", "drill", {"worlds": 19}, 0),
    ("drill", "drill", {"failed": [7]}, 0),
    ("dead-man", "drill", {}, 1),
    ("dead-man", "drill", {"silenced": 1}, 0.5),
    ("dead-man", "drill", {"silenced": 0}, 0),
    ("alerts", "test_notice", {"targets": {"k1": True, "k2": True}}, 1),
    ("alerts", "test_notice", {"targets": {"k1": True}}, 0.5),
    ("alerts", "test_notice", {"targets": {"k1": False}}, 0),
]
FACTS = {"backtest": BACKTEST, "walk_forward": WALK, "drill": DRILL, "test_notice": {}}


@pytest.mark.parametrize(("name", "kind", "instead", "share"), VALUES)
def test_a_line_has_its_points_by_the_value_of_its_evidence(
    case: Case, name: str, kind: str, instead: dict[str, Any], share: float
) -> None:
    case.add(kind, {**FACTS[kind], **instead})
    line = case.line(name)
    assert (line.state, line.share) == ("known", share)
    assert line.share == 1 or line.remedy


@pytest.mark.parametrize("name", [name for name in RULES if name not in ("key", "clock")])
def test_missing_evidence_is_not_known_and_passes_nothing(case: Case, name: str) -> None:
    line = case.line(name)
    assert (line.state, line.share) == ("not known", 0)
    assert line.remedy


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name, kind, _, share in VALUES if share == 1 and kind != "test_notice"]
    + [("deflated Sharpe", "sweep")],
)
@pytest.mark.parametrize(
    ("text", "instead", "said"),
    [
        ("budget_usd: 500", "budget_usd: 400", "budget_usd has changed"),
        ("budget_usd: 500", "budget_usd: 500, params: {slow_bars: 20}", "params.slow_bars has changed"),
        ("heartbeat_seconds: 300", "heartbeat_seconds: 400", "dead_man has changed"),
    ],
)
def test_evidence_of_another_version_is_old_and_says_what_has_changed(
    case: Case, name: str, kind: str, text: str, instead: str, said: str
) -> None:
    case.add(kind, sweep(case, 0.99) if kind == "sweep" else FACTS[kind])
    assert case.line(name).state == "known"
    case.changed(text, instead)
    line = case.line(name)
    assert (line.state, line.share) == ("old", 0)
    assert said in line.evidence


def test_evidence_of_another_source_of_the_strategy_is_old(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "strategies").mkdir()
    source = (repository / "strategies" / "trend.py").read_text()
    (tmp_path / "strategies" / "trend.py").write_text(source)
    case = Case(tmp_path, tmp_path)
    case.add("drill", DRILL)
    assert case.line("drill").state == "known"
    (tmp_path / "strategies" / "trend.py").write_text(source + "\n# Changed.\n")
    assert case.line("drill").state == "old"
    assert "the source of strategy trend has changed" in case.line("drill").evidence


def test_a_default_that_the_config_names_changes_no_version(case: Case) -> None:
    case.add("backtest", BACKTEST)
    case.changed("budget_usd: 500", "budget_usd: 500, params: {fast_bars: 4}")
    assert case.line("tested period").state == "known"


def test_the_params_that_a_walk_forward_chooses_make_it_not_old(case: Case) -> None:
    case.add("walk_forward", WALK)
    case.changed("budget_usd: 500", "budget_usd: 500, params: {fast_bars: 9}")
    assert case.line("walk-forward").state == "known"
    case.changed("fast_bars: 9", "fast_bars: 9, slow_bars: 40")
    assert case.line("walk-forward").state == "old"


@pytest.mark.parametrize(("deflated", "share"), [(0.96, 1), (0.8, 0.5), (0.2, 0)])
def test_the_deflated_sharpe_ratio_is_that_of_the_trial_with_the_params_of_the_config(
    case: Case, deflated: float, share: float
) -> None:
    case.add("sweep", sweep(case, deflated))
    assert case.line("deflated Sharpe").share == share
    case.changed("budget_usd: 500", "budget_usd: 500, params: {fast_bars: 9}")
    line = case.line("deflated Sharpe")
    assert line.state == "old"
    assert "against its best, strategy trend: params.fast_bars has changed" in line.evidence
    case.pieces = [replace_facts(case.pieces[0], trials=[])]
    assert case.line("deflated Sharpe").state == "not known"


def replace_facts(piece: Evidence, **facts: Any) -> Evidence:
    return piece._replace(facts={**piece.facts, **facts})


def test_the_longest_backtest_counts_and_not_the_best(case: Case) -> None:
    case.add("backtest", {**BACKTEST, "days": 500.0, "trades": 10})
    case.add("backtest", {**BACKTEST, "days": 100.0, "trades": 900})
    assert case.line("trades").share == 0


def test_worlds_add_up_and_a_world_that_is_run_again_has_its_newest_outcome(case: Case) -> None:
    case.add("drill", {**DRILL, "worlds": 60, "failed": [7]})
    case.add("drill", {**DRILL, "seed": 61, "worlds": 60})
    line = case.line("drill")
    assert (line.share, "119 of 120 worlds" in line.evidence) == (0, True)
    assert "--worlds 1 --seed 7 --steps" in (line.remedy or "")
    case.add("drill", {**DRILL, "ground": "b", "seed": 7, "worlds": 1})
    assert case.line("drill").share == 0, "a world on other candles is another world"
    case.add("drill", {**DRILL, "seed": 7, "worlds": 1})
    assert case.line("drill").share == 1


@pytest.mark.parametrize(
    ("limits", "worst", "share"),
    [
        ("daily_loss_usd: 50", -40.0, 1),
        ("daily_loss_usd: null", -1.0, 0),
        ("daily_loss_usd: null}\nguardians:\n  - {type: account_drawdown, max_loss_pct_from_day_start: 1", -100.0, 0.5),
        ("daily_loss_usd: 50}\nguardians:\n  - {type: account_drawdown, max_loss_pct_from_day_start: 1", -100.0, 0),
    ],
)
def test_the_worst_day_is_held_against_the_lowest_limit_of_a_day(
    case: Case, limits: str, worst: float, share: float
) -> None:
    more = ", action: flatten" if "guardians" in limits else ""
    case.changed("daily_loss_usd: 50", limits + more)
    case.add("backtest", {**BACKTEST, "worstDayUsd": worst})
    assert case.line("worst day").share == share


@pytest.mark.parametrize(
    ("days", "unknown", "state", "share"),
    [(14, 0, "known", 1), (14, 1, "known", 0.5), (5, 0, "known", 0.5), (4, 0, "known", 0), (3, 3, "known", 0)],
)
def test_days_count_that_are_proved_without_an_unknown_cause(
    case: Case, days: int, unknown: int, state: str, share: float
) -> None:
    prove(case, days, unknown=unknown)
    line = case.line("proved days")
    assert (line.state, line.share) == (state, share)


def test_days_of_another_version_are_old_and_those_of_an_unknown_one_too(case: Case) -> None:
    prove(case, 14)
    case.changed("budget_usd: 500", "budget_usd: 400")
    assert (case.line("proved days").state, case.line("proved days").share) == ("old", 0)
    (case.settings.state_dir / "journal.db").unlink()
    prove(case, 14, is_marked=False)
    assert case.line("proved days").state == "old", "no mark says what ran on these days"


def test_the_days_of_the_daemon_on_play_money_count(case: Case, tmp_path: Path) -> None:
    prove(case, 14)
    case.settings.state_dir.rename(tmp_path / "paper")
    assert case.line("proved days").state == "not known"
    assert "--paper CONFIG" in (case.line("proved days").remedy or "")
    case.add("paper", {"folder": str(tmp_path / "paper")})
    assert case.line("proved days").share == 1


@pytest.mark.parametrize(
    ("age_days", "state", "share"), [(0.5, "known", 1), (6, "known", 0.5), (8, "old", 0), (-1, "not known", 0)]
)
def test_a_backup_has_its_points_by_its_age(case: Case, age_days: float, state: str, share: float) -> None:
    noted_backup(case, NOW_MS - int(age_days * DAY_MS))
    line = case.line("backup")
    assert (line.state, line.share) == (state, share)


@pytest.mark.parametrize(("age_days", "state"), [(30, "known"), (31, "old")])
def test_a_test_notice_counts_for_thirty_days(case: Case, age_days: int, state: str) -> None:
    case.add("test_notice", {"targets": {"k1": True, "k2": True}}, NOW_MS - age_days * DAY_MS)
    assert case.line("alerts").state == state
    case.addresses = (("${env:FIRST}", None), ("${env:SECOND}", None))
    assert case.line("alerts").state == "not known", "an address that cannot be read here is not known"


@pytest.mark.parametrize(
    ("instead", "name", "state", "share"),
    [
        ({}, "key", "known", 1),
        ({"missing_scopes": ("trade",)}, "key", "known", 0),
        ({"expires_ms": NOW_MS + EXPIRES_SOON_MS}, "key", "known", 1),
        ({"expires_ms": NOW_MS + DAY_MS}, "key", "known", 0.5),
        ({"expires_ms": NOW_MS - 1}, "key", "known", 0),
        ({"scopes": None, "problem": "no answer"}, "key", "not known", 0),
        ({}, "clock", "known", 1),
        ({"skew_ms": -2_500.0}, "clock", "known", 0.5),
        ({"skew_ms": 31_000.0}, "clock", "known", 0),
        ({"skew_ms": None}, "clock", "not known", 0),
        ({"is_own": True, "scopes": None, "skew_ms": None}, "key", "known", 1),
        ({"is_own": True, "scopes": None, "skew_ms": None}, "clock", "known", 1),
    ],
)
def test_key_and_clock_are_what_the_service_says(
    case: Case, instead: dict[str, Any], name: str, state: str, share: float
) -> None:
    case.service = replace(GOOD, **instead)
    line = case.line(name)
    assert (line.state, line.share) == (state, share)


@pytest.mark.parametrize(
    ("fact", "state", "share"),
    [
        (None, "not known", 0),
        (ExchangeFact("agent", "unknown", "its expiry is not known"), "not known", 0),
        (ExchangeFact("agent", "ok", "may act until tomorrow"), "known", 1),
        (ExchangeFact("agent", "warn", "expires soon", "approve a new one"), "known", 0.5),
        (ExchangeFact("agent", "fail", "was revoked", "approve a new one"), "known", 0),
    ],
)
def test_the_key_of_an_exchange_account_is_its_agent(
    case: Case, fact: ExchangeFact | None, state: str, share: float
) -> None:
    agent = case.config.with_name("agent")
    agent.write_text("02" * 32)
    agent.chmod(0o600)
    place = f'{{exchange: hyperliquid, network: mainnet, address: "0x{"a" * 40}", agent_key: "${{file:{agent}}}"}}'
    case.changed('account: {base_url: "https://trading.example", api_key: "${env:KEY}"}', f"account: {place}")
    case.service = ServiceFacts(is_own=True, agent=fact)
    line = case.line("key")
    assert (line.state, line.share) == (state, share)
    assert line.share == 1 or line.remedy


@pytest.mark.parametrize(
    ("text", "instead", "name"),
    [
        ("dead_man: {heartbeat_seconds: 300, on_miss: flatten}", "dead_man: off", "dead-man"),
        ('notify: {urls: ["${env:FIRST}", "${env:SECOND}"]}', "", "alerts"),
    ],
)
def test_a_section_that_is_missing_is_known_to_be_bad(case: Case, text: str, instead: str, name: str) -> None:
    case.changed(text, instead)
    line = case.line(name)
    assert (line.state, line.share) == ("known", 0)


# ── The grade ───────────────────────────────────────────────────────────────────────────────────────────────────────


def whole(case: Case) -> None:
    """Evidence of all points."""
    case.add("backtest", BACKTEST)
    case.add("sweep", sweep(case, 0.99))
    case.add("walk_forward", WALK)
    case.add("drill", DRILL)
    case.add("test_notice", {"targets": {"k1": True, "k2": True}})
    prove(case, 14)
    noted_backup(case, NOW_MS)


def test_all_evidence_is_an_a_and_nothing_is_next(case: Case) -> None:
    whole(case)
    readiness = case.readiness()
    assert (readiness.grade, readiness.points, readiness.next_line) == ("A", 100, None)
    assert readiness.plain()["missing"] == []


@pytest.mark.parametrize("name", [rule.name for rule in RULES.values() if rule.is_needed])
def test_without_a_needed_line_the_grade_is_at_most_d_and_that_line_is_next(case: Case, name: str) -> None:
    whole(case)
    lines = [
        ReadinessLine(name, "not known", 0, "nothing", "bot doctor") if line.name == name else line
        for line in case.readiness().lines
    ]
    readiness = Readiness("mine", lines)
    assert (readiness.grade, readiness.missing) == ("D", [name])
    assert not readiness.is_enough
    assert readiness.next_line is not None
    assert readiness.next_line.name == name


@pytest.mark.parametrize("name", list(RULES))
def test_more_of_a_line_never_lowers_the_grade(name: str) -> None:
    for rest in (0, 0.5, 1):
        shares = dict.fromkeys(RULES, rest)
        grades = [grade_of({**shares, name: share}) for share in (0, 0.5, 1)]
        assert grades == sorted(grades, reverse=True)


def test_the_next_line_is_the_one_whose_whole_points_give_the_best_grade(case: Case) -> None:
    """Without a walk-forward and with half of the days: 83 of 100 points. The days bring 90, the walk-forward 93."""
    whole(case)
    case.pieces = [piece for piece in case.pieces if piece.kind != "walk_forward"]
    proofs = sorted((case.settings.state_dir / "proofs").iterdir())
    for path in proofs[:5]:
        path.unlink()
    readiness = case.readiness()
    assert (readiness.points, readiness.grade) == (83, "B")
    best = readiness.next_line
    assert best is not None
    assert best.name == "walk-forward"


def test_the_points_are_a_hundred_and_the_docs_have_the_rule() -> None:
    assert sum(rule.points for rule in RULES.values()) == 100
    row = r"^\| ([\w -]+) \| (\d+) \| (.+) \| (.+) \| (yes|) ?\|$"
    rows = re.findall(row, section("readiness", "The lines"), re.MULTILINE)
    assert [tuple(map(str.strip, row)) for row in rows] == [
        (rule.name, str(rule.points), rule.half, rule.whole, "yes" if rule.is_needed else "") for rule in RULES.values()
    ]
    grades = re.findall(r"([A-F]) from (\d+)", section("readiness", "The grade"))
    assert {grade: int(least) for grade, least in grades} == {name: least for name, least in GRADES.items() if least}


@pytest.mark.parametrize(
    ("account", "environment", "is_play"),
    [
        ('{base_url: "https://trading.example", api_key: "${env:KEY}"}', None, False),
        ('{base_url: "https://trading.example", api_key: "${env:KEY}"}', "mainnet", False),
        ('{base_url: "http://127.0.0.1:1", api_key: "${env:KEY}"}', None, False),
        ('{base_url: "http://127.0.0.1:1", api_key: "${env:KEY}"}', "sandbox", True),
        ("{base_url: embedded}", None, True),
        ("{exchange: hyperliquid, network: testnet, address: \"0x%s\", agent_key: '${file:k}'}", None, True),
        ("{exchange: hyperliquid, network: mainnet, address: \"0x%s\", agent_key: '${file:k}'}", None, False),
        ('{exchange: hyperliquid, network: mainnet, address: "0x%s"}', None, True),
    ],
)
def test_money_is_play_money_only_if_that_is_known(
    case: Case, account: str, environment: str | None, is_play: bool
) -> None:
    key = case.config.with_name("k")
    key.write_text("0x" + "11" * 32)
    key.chmod(0o600)
    off = "dead_man: off\nsafety: {require_protection: false}" if "agent_key" not in account else ""
    before = case.config.read_text().replace(
        'account: {base_url: "https://trading.example", api_key: "${env:KEY}"}', ""
    )
    if "exchange" in account and off:
        before = before.replace("dead_man: {heartbeat_seconds: 300, on_miss: flatten}", off)
    case.config.write_text(f"account: {account.replace('%s', 'ab' * 20)}\n{before}")
    settings = checked_without_secrets(case.config)[0]
    assert is_play_money(settings, ServiceFacts(environment=environment)) is is_play


# ── The file ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_evidence_is_kept_for_its_owner_and_the_oldest_of_a_kind_goes(case: Case) -> None:
    state, version = case.settings.state_dir, version_of(case.settings)
    keep_evidence(state, "backtest", version, BACKTEST)
    for seed in range(KEPT + 1):
        keep_evidence(state, "drill", version, {**DRILL, "seed": seed})
    pieces = read_evidence(state)
    assert [piece.kind for piece in pieces].count("backtest") == 1
    assert [piece.facts["seed"] for piece in pieces if piece.kind == "drill"] == list(range(1, KEPT + 1))
    assert not changes(pieces[0].version, version)
    assert (state / FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "7", "[" * 100_000, '{"format": 2, "evidence": []}', '{"format": 1}', "\xff"])
def test_a_damaged_file_is_named_and_set_aside_by_the_next_evidence(case: Case, text: str) -> None:
    state = case.settings.state_dir
    (state / FILE).write_text(text, encoding="latin-1")
    with pytest.raises(EvidenceDamaged, match="the next evidence sets it aside"):
        read_evidence(state)
    keep_evidence(state, "drill", version_of(case.settings), DRILL)
    assert len(read_evidence(state)) == 1
    assert (state / f"{FILE}.damaged").read_text(encoding="latin-1") == text


@pytest.mark.parametrize(
    "spoilt",
    [
        {"kind": "other"},
        {"kind": 7},
        {"atMs": "1"},
        {"facts": []},
        {"facts": {**DRILL, "worlds": "100"}},
        {"version": {"config": {}}},
        {"version": None},
        {"kind": "sweep", "facts": {"study": "s", "data": [], "count": 1, "trials": [{"deflated": 1}]}},
    ],
)
def test_a_piece_of_another_form_counts_as_none(case: Case, spoilt: dict[str, Any]) -> None:
    state = case.settings.state_dir
    keep_evidence(state, "drill", version_of(case.settings), DRILL)
    document = json.loads((state / FILE).read_text())
    document["evidence"][0] |= spoilt
    (state / FILE).write_text(json.dumps(document))
    assert read_evidence(state) == []


def test_the_bounds_in_words_are_those_of_the_code() -> None:
    bounds = {
        "tested period": readiness_lines.DAYS,
        "trades": readiness_lines.TRADES,
        "walk-forward": readiness_lines.CHANCE,
        "deflated Sharpe": readiness_lines.CHANCE,
        "drill": readiness_lines.WORLDS,
        "proved days": readiness_lines.PROVED,
        "dead-man": readiness_lines.SILENCED,
        "cost share": tuple(int(100 * part) for part in readiness_lines.COSTS),
        "clock": tuple(ms // 1000 for ms in readiness_lines.SKEW_MS),
    }
    for name, (half, most) in bounds.items():
        assert re.search(rf"\b{half}\b", RULES[name].half), name
        assert re.search(rf"\b{most}\b", RULES[name].whole), name
