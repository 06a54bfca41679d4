"""`bot whatif`: the history of an account under other settings of its guardians, by the venue's own rules."""

from __future__ import annotations

import asyncio
import csv
import json
import shlex
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.engine.options import Outage
from bot.backtest.replay.records import flat_points
from bot.cli.app import call
from bot.clock import iso
from bot.errors import ConfigError
from bot.research.runners import Processes
from bot.research.what_if.account_replay import evaluate_setting, play
from bot.research.what_if.comparison import Effect, what_if
from bot.research.what_if.history import lives_of
from bot.research.what_if.recorded_requests import GivenRequest
from bot.research.what_if.setting import read_grid, requests_under
from bot.runtime.journal import queries
from bot.runtime.kernel.kernel import Kernel
from bot.strategy import MaxHold, TrailingStop
from bot.venue.model.state import State, VenueAccount, VenueGuardian
from bot.venue.prices import index
from bot.venue.triggers import guardian_deadlines
from tests.backtest.builders import MINUTE_MS, START_MS, minutes, write
from tests.backtest.lived_day import BARS, HISTORY
from tests.backtest.lived_day import lived as lived_at_sandbox
from tests.documents import PAGES, blocks
from tests.research.given_histories import Case, case, compared, lived

# histories of the suite; tests/bench/whatif.py compares a thousand
SEEDS = range(30)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_what_if_of_a_history_has_the_events_of_a_real_run_with_that_setting(seed: int) -> None:
    result = compared(case(seed))
    assert result.played == result.recorded
    assert result.what_if == result.real
    assert result.what_if != result.played, "the setting must change something, or the test shows nothing"


def test_a_guardian_that_fires_one_price_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    late: set[int] = set()
    right = guardian_deadlines.BY_CLOCK["max_hold"]

    def fire(state: State, account: VenueAccount, guardian: VenueGuardian) -> None:
        if guardian.number in late:
            right(state, account, guardian)
            return
        late.add(guardian.number)
        assert guardian.deadline_ms is not None
        guardian.deadline_ms += MINUTE_MS // 3
        index.schedule_guardian(state, account, guardian)

    seeded = Case(1, {}, {"guardians": (MaxHold(seconds=300),)}, {"max_hold.seconds": "300"})
    right_result = compared(seeded)
    assert right_result.is_equal
    monkeypatch.setitem(guardian_deadlines.BY_CLOCK, "max_hold", fire)
    assert right_result._replace(what_if=compared(seeded).what_if).is_equal is False


def test_a_lost_order_is_found() -> None:
    history = lived(0, (TrailingStop(trail_pct=0.5),)).history
    whole = play(history, {})
    orders = [request for request in history.requests if request.action == "order"]
    for lost in orders[:5]:
        less = replace(history, requests=tuple(request for request in history.requests if request is not lost))
        assert play(less, {}).digest != whole.digest


def test_settings_apply_from_since_on() -> None:
    history = lived(0, (TrailingStop(trail_pct=1),)).history
    middle_ms = START_MS + 120 * MINUTE_MS
    present, setting = play(history, {}), {"trailing_stop.trailPct": "0.1"}
    later = Effect.of(setting, present, play(history.since(middle_ms), setting))
    whole = Effect.of(setting, present, play(history, setting))
    assert 0 < len(later.trades) < len(whole.trades)
    assert all(changed.trade.entry_ms >= middle_ms - MINUTE_MS for changed in later.trades)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("account_drawdown", "maxLossPctFromDayStart", "0.01"),
        ("schedule", "cron", "* * * * *"),
        ("dead_man_switch", "heartbeatSeconds", "60"),
    ],
)
def test_an_account_wide_setting_is_armed_at_since(kind: str, field: str, value: str) -> None:
    history = lived(0).history.since(START_MS + 120 * MINUTE_MS)
    armed = [request for request in requests_under(history, {f"{kind}.{field}": value}) if request.action == "arm"]
    assert [(request.at_ms, request.body["type"]) for request in armed] == [(history.since_ms, kind)]


def test_an_armed_guardian_of_the_account_is_replaced_at_since() -> None:
    guardian = {"type": "account_drawdown", "max_loss_pct_from_day_start": Decimal(5), "action": "block_opens"}
    history = lived(0, config={"guardians": [guardian]}).history
    later = history.since(START_MS + 120 * MINUTE_MS)
    requests = [r for r in requests_under(later, {"account_drawdown.maxLossPctFromDayStart": "0.01"}) if not r.market]
    armed = [request.body.get("maxLossPctFromDayStart") for request in requests]
    assert [(r.at_ms, r.action) for r in requests] == [
        (START_MS, "arm"),
        (later.since_ms, "disarm"),
        (later.since_ms, "arm"),
    ]
    assert armed == [5, None, Decimal("0.01")]
    assert {request.body.get("action") for request in requests} == {"block_opens", None}
    assert {request.key for request in requests} == {requests[0].key}


def test_a_dead_man_switch_changes_at_since_and_acts_at_the_outage_after_it() -> None:
    outage = Outage(START_MS + 100 * MINUTE_MS, 20 * MINUTE_MS)
    record = lived(0, outages=(outage,), config={"dead_man": {"heartbeat_seconds": 3_600, "on_miss": "flatten"}})
    history, setting = record.history, {"dead_man_switch.heartbeatSeconds": "60"}
    later = history.since(START_MS + 50 * MINUTE_MS)
    whole, part, present = play(history, setting), play(later, setting), play(history, {})
    assert part.trades == whole.trades != present.trades
    assert any(trade.exit_kind == "guardian" for trade in whole.trades)
    assert play(later, {"dead_man_switch.heartbeatSeconds": "off"}).trades == present.trades
    assert play(history.since(outage.at_ms + 30 * MINUTE_MS), setting).trades == present.trades


def test_an_order_of_others_is_played_with_its_size_and_named() -> None:
    """The journal does not know one close and one entry: they are orders of others on the account."""
    whole = lived(0, (TrailingStop(trail_pct=0.5),))
    forget = "DELETE FROM intents WHERE id=(SELECT id FROM intents WHERE action='close' AND state='accepted' LIMIT 1)"
    altered = lived(0, (TrailingStop(trail_pct=0.5),), alter=forget)
    others = [request for request in altered.history.requests if not request.strategy and request.action == "close"]
    assert len(others) == 1
    assert [text for text in altered.history.notes if text.startswith("1 order of others on the account")]
    was, now = play(whole.history, {}), play(altered.history, {})
    assert (now.cash, now.fills) == (was.cash, was.fills)


def test_the_kill_switch_of_a_history_can_have_another_action() -> None:
    history = lived(0).history
    kill = GivenRequest(START_MS + 100 * MINUTE_MS, "arm", "kill", body={"type": "kill_switch", "action": "flatten"})
    requests = tuple(sorted([*history.requests, kill], key=lambda request: request.at_ms))
    killed = replace(history, requests=requests)
    lift = GivenRequest(START_MS + 160 * MINUTE_MS, "disarm", "kill")
    lifted = replace(history, requests=tuple(sorted([*requests, lift], key=lambda request: request.at_ms)))
    present = play(killed, {})
    assert any(trade.exit_kind == "kill" for trade in present.trades)
    assert play(killed, {"kill_switch.action": "cancel_orders"}).digest != present.digest
    assert play(lifted, {}).fills > present.fills
    assert play(killed, {"kill_switch.action": "off"}).digest == play(history, {}).digest


@pytest.mark.parametrize(
    ("starts", "active", "lives"),
    [
        ((0,), (), ((0, 900),)),
        # an outage: the daemon was last active at 300
        ((0, 600), (100, 200, 300, 700), ((0, 300), (600, 900))),
        # a reload, or a restart within two bars
        ((0, 310), (100, 200, 300, 400), ((0, 900),)),
        ((0, 600, 610), (100, 300, 605), ((0, 300), (600, 900))),
    ],
)
def test_a_daemon_was_down_from_its_last_bar_to_the_next_start(
    starts: tuple[int, ...], active: tuple[int, ...], lives: tuple[tuple[int, int], ...]
) -> None:
    assert lives_of(starts, active, 900, 200) == lives


# ── Settings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_grid_has_each_value_with_each_other() -> None:
    cells = read_grid(["trailing_stop: 0.5..1.5 step 0.5", "max_hold: off, 90m"])
    assert cells == [
        {"trailing_stop.trailPct": pct, "max_hold.seconds": held}
        for pct in ("0.5", "1", "1.5")
        for held in ("off", "5400")
    ]
    assert read_grid(["schedule: 0 20 * * 5 | 0 21 * * 1,2"])[1] == {"schedule.cron": "0 21 * * 1,2"}
    assert read_grid(["kill_switch: flatten"]) == [{"kill_switch.action": "flatten"}]


@pytest.mark.parametrize(
    ("text", "error", "remedy"),
    [
        ("1..3", "write TYPE: VALUES", "trailing_stop: 0.5..3 step 0.25"),
        ("trailing_stp: 1", "is no guardian; did you mean trailing_stop?", "trailing_stop: 1"),
        ("max_hold.trailPct: 1", "does not belong to a max_hold; take seconds", "max_hold.seconds: 60"),
        ("trailing_stop: 1..60 step 1", "'60' must be > 0, <= 50", "trailing_stop: 1..50 step 1"),
        ("trailing_stop: 0", "'0' must be > 0, <= 50", "trailing_stop: 0.01"),
        ("max_hold: 30", "'30' must be 60..", "max_hold: 60"),
        ("max_hold: 1 hour", "is not a number; write 2 or 0.5, or a duration such as 90m", "max_hold: 90m"),
        ("dead_man_switch: 30s", "'30s' must be 60..86400", "dead_man_switch: 60s"),
        ("account_drawdown: 101", "'101' must be > 0, <= 100", "account_drawdown: 100"),
        (
            "kill_switch: nothing",
            "'nothing' must be one of flatten, block_opens, cancel_orders",
            "kill_switch: flatten",
        ),
        ("schedule: 0 20 * *", "is not a cron line", "schedule: 0 20 * * *"),
        ("trailing_stop: 1..3", "has no step; write for example 1..3 step 1", "trailing_stop: 1..3 step 1"),
        ("trailing_stop: 3..1 step 1", "must begin below its end", "trailing_stop: 1..3 step 1"),
        ("trailing_stop: 1..3 step 0", "with a step above 0", "trailing_stop: 1..3 step 2"),
        ("trailing_stop: 1..3 by 1", "is no range; write LOW..HIGH step STEP", "trailing_stop: 1..3 step 1"),
        ("trailing_stop: 1..3 step 0.00001", "are more than 100,000; take a larger step", "max_hold: 1h"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_with_its_bound_and_the_way_out(
    text: str, error: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_grid([text])
    assert error in str(refused.value)
    assert str(refused.value).startswith("--guardian ")
    assert "\n" not in str(refused.value)
    assert read_grid([remedy])


def test_too_many_settings_and_a_field_given_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="160,000 settings are more than 100,000; take larger steps"):
        read_grid(["trailing_stop: 0.01..4 step 0.01", "max_hold: 1m..400m step 1m"])
    with pytest.raises(ConfigError, match="trailing_stop.trailPct: is given twice; put its values into one"):
        read_grid(["trailing_stop: 1", "trailing_stop.trailPct: 2"])


@pytest.mark.parametrize(
    ("setting", "error", "remedy"),
    [
        (
            {"trailing_stop.activateAtR": "1"},
            "trailing_stop.trailPct",
            {"trailing_stop.activateAtR": "1", "trailing_stop.trailR": "1"},
        ),
        ({"trailing_stop.trailPct": "1", "trailing_stop.trailR": "1"}, "exactly one of", {"trailing_stop.trailR": "1"}),
        ({"schedule.action": "flatten"}, "schedule.cron", {"schedule.action": "flatten", "schedule.cron": "0 1 * * *"}),
        ({"kill_switch.action": "flatten"}, "no kill switch acted in the history; leave it out", {}),
    ],
)
def test_a_guardian_that_lacks_a_field_is_refused(
    setting: Mapping[str, str], error: str, remedy: Mapping[str, str]
) -> None:
    history = lived(0).history
    with pytest.raises(ConfigError, match=error):
        requests_under(history, setting)
    assert requests_under(history, remedy)


def test_a_stop_at_the_entry_and_unnamed_fields_stay() -> None:
    history = lived(0, (TrailingStop(trail_pct=1, activate_at_r=2), MaxHold(seconds=900))).history
    break_even = {"type": "trailing_stop", "trailR": 3, "activateAtR": 3}
    requests = [
        request._replace(body={**request.body, "guardians": [break_even, *request.body["guardians"]]})
        if request.action == "order"
        else request
        for request in history.requests
    ]
    changed = requests_under(replace(history, requests=tuple(requests)), {"trailing_stop.trailR": "1"})
    for body in (request.body for request in changed if request.action == "order"):
        first, trail, hold = body["guardians"]
        assert first == break_even
        assert {name: float(trail[name]) for name in ("trailR", "activateAtR")} == {"trailR": 1, "activateAtR": 2}
        assert "trailPct" not in trail
        assert hold["seconds"] == 900


# ── The command ─────────────────────────────────────────────────────────────────────────────────────────────────────

TRAILED = """
from bot import Bracket, Close, Open, Params, Strategy, TrailingStop


class Trailed(Strategy):
    class Params(Params):
        trail: float = 1.0

    def on_bar(self, view, bar):
        number = bar.at_ms // 60_000
        trail = TrailingStop(trail_pct=self.params.trail)
        if number % 7 == 3:
            side = "long" if number % 2 else "short"
            yield Open(bar.market, side, size=0.001, bracket=Bracket(stop_pct=5), guardians=(trail,))
"""


def config(folder: Path, trail: float) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "trailed.py").write_text(TRAILED)
    file = folder / "mine.yaml"
    file.write_text(
        f"account: {{base_url: embedded}}\nname: mine\ndead_man: off\nstrategies_dir: {folder}\nstate_dir:"
        f" {folder / 'state'}\nstrategies:\n  - {{name: trailed, use: trailed, markets: [BTC], budget_usd: 9000,"
        f" params: {{trail: {trail}}}}}\n"
    )
    return file


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    """Exit code, the JSON on standard output (None without), and the text on standard error."""
    capsys.readouterr()
    code = call(["whatif", *words])
    said = capsys.readouterr()
    return code, json.loads(said.out) if "--json" in words and code == 0 else said.out, said.err


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a backtest and its candles."""
    folder = tmp_path_factory.mktemp("run")
    data = write(minutes(1_500, vol=0.001), folder / "BTC_1m.csv")
    assert call(["backtest", str(config(folder, 0.6)), "--data", str(data), "--out", str(folder / "runs")]) == 0
    (first,) = (folder / "runs").iterdir()
    return first, data


def test_the_folder_of_a_backtest_is_tried_with_workers(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run[0]), "--data", str(run[1]), "--guardian", "trailing_stop: 0.2..1 step 0.4", "--workers", "2"]
    table = tmp_path / "settings.csv"
    code, result, _ = asked(capsys, *words, "--json", "--csv", str(table))
    assert code == 0
    summary = json.loads((run[0] / "summary.json").read_text())
    assert result["present"]["fills"] == result["present"]["recordedFills"] > 100
    assert result["present"]["balanceUsd"] == result["present"]["recordedBalanceUsd"]
    assert result["present"]["setting"] == {"trailing_stop.trailPct": "0.6"}
    assert result["present"]["trades"] == sum(part["# Trades"] for part in summary["strategies"].values()) + bool(
        summary["left"]
    )
    nets = [float(row["net_usd"]) for row in result["settings"]]
    assert nets == sorted(nets, reverse=True)
    same = next(row for row in result["settings"] if row["setting"] == {"trailing_stop.trailPct": "0.6"})
    assert (same["changed"], same["net_usd"], same["trades"]) == (0, "0", [])
    for row in result["settings"]:
        usd = sum(float(trade["usd"]) for trade in row["trades"])
        assert usd == pytest.approx(float(row["net_usd"]), abs=1e-6)
        assert float(row["saved_usd"]) - float(row["cost_usd"]) == pytest.approx(usd, abs=1e-6)
        moved = [
            (trade["present"], trade["setting"]) for trade in row["trades"] if trade["present"] and trade["setting"]
        ]
        assert row["earlier"] == sum((now["exitMs"] or 1e15) < (was["exitMs"] or 1e15) for was, now in moved)
        assert row["later"] == sum((now["exitMs"] or 1e15) > (was["exitMs"] or 1e15) for was, now in moved)
    with table.open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["net_usd"] for row in rows] == [row["net_usd"] for row in result["settings"]]
    assert {row["trailing_stop.trailPct"] for row in rows} == {"0.2", "0.6", "1"}


def test_the_table_names_best_present_trades_and_what_the_figures_are_worth(
    run: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = asked(capsys, str(run[0]), "--data", str(run[1]), "--guardian", "trailing_stop: 0.2, 0.3")
    assert code == 0
    for part in (
        "present: trailing_stop.trailPct 0.6",
        "Changed by trailing_stop.trailPct 0.",
        "more: --json",
        "Later orders stay as they were given: no strategy decides again after an earlier exit.",
        "in 100 such samples lies between",
        "The best of 2 settings is the luckiest of them.",
        "10 with differences are needed",
    ):
        assert part in text, part


def test_what_cannot_be_tried_is_one_sentence_with_the_way_out(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(run[0]), "--data", str(run[1]), "--guardian"]
    for words, code, error in (
        ([*given, "trailing_stop: 1", "--since", "2030-01-01"], 4, "there is no history since 2030-01-01T00:00:00"),
        ([*given, "trailing_stop: 1..60 step 1"], 4, "trailing_stop.trailPct: '60' must be > 0, <= 50"),
        ([*given, "trailing_stop.activateAtR: 1", "--guardian", "trailing_stop: off, 2"], 0, ""),
        ([*given, "kill_switch: flatten"], 4, "no kill switch acted in the history; leave it out"),
        ([str(run[0]), "--guardian", "trailing_stop: 1"], 2, "a run does not store its candles: give them with --data"),
        (["nowhere", "--guardian", "trailing_stop: 1"], 2, "nowhere: is no folder"),
        (["live", "--state-dir", str(tmp_path), "--guardian", "trailing_stop: 1"], 2, "has no journal"),
    ):
        left, _, said = asked(capsys, *words)
        assert (left, words) == (code, words)
        assert error in said
        assert "Traceback" not in said
    # the way out of the first: an earlier instant
    middle = iso(START_MS + 600 * MINUTE_MS)[:16]
    assert asked(capsys, *given, "trailing_stop: 0.3", "--since", middle)[0] == 0


def test_a_backtest_whose_code_has_changed_cannot_be_repeated(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = config(tmp_path / "other", 0.5)
    words = [str(run[0]), "--data", str(run[1]), "--config", str(other), "--guardian", "trailing_stop: 1"]
    code, _, said = asked(capsys, *words)
    assert code == 1
    assert "cannot be repeated, because its code, config or data have changed; bot replay" in said


def test_the_journal_of_a_daemon_says_what_a_daemon_with_the_setting_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two daemons against the same sandbox: the what-if of the first has the trades of the second."""
    data = write(minutes(HISTORY + BARS + 30, vol=0.001), tmp_path / "BTC_1m.csv")
    now, then = config(tmp_path / "now", 1.0), config(tmp_path / "then", 0.15)
    for file in (now, then):
        asyncio.run(lived_at_sandbox(file, data))
    words = ["live", "--data", str(data), "--guardian", "trailing_stop: 0.15, 1", "--json", "--config"]
    _, tried, _ = asked(capsys, *words, str(now))
    _, real, _ = asked(capsys, *words, str(then))
    for result in (tried, real):
        assert result["present"]["fills"] == result["present"]["recordedFills"] > 5
        assert result["present"]["balanceUsd"] == result["present"]["recordedBalanceUsd"]
    (row,) = (row for row in tried["settings"] if row["setting"] == {"trailing_stop.trailPct": "0.15"})
    (back,) = (row for row in real["settings"] if row["setting"] == {"trailing_stop.trailPct": "1"})
    assert row["changed"] > 2
    assert float(row["net_usd"]) == -float(back["net_usd"])
    turned = [(trade["entryMs"], trade["present"], trade["setting"]) for trade in back["trades"]]
    there = [(trade["entryMs"], trade["setting"], trade["present"]) for trade in row["trades"]]
    assert sorted(there, key=str) == sorted(turned, key=str)


def test_a_history_begins_at_the_newest_instant_without_a_position_before_since(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rest(number: int, kernel: Kernel) -> None:
        # A minute of real time passes, so that the daemon looks after its journal. Later no time passes.
        kernel.budget.pacer.now_ms += MINUTE_MS if number < BARS // 2 else 0

    data = write(minutes(HISTORY + BARS + 30, vol=0.001), tmp_path / "BTC_1m.csv")
    file = config(tmp_path, 0.1)
    asyncio.run(lived_at_sandbox(file, data, between=rest))
    with queries.opened(tmp_path / "state") as db:
        (point,) = flat_points(db, epoch=0)
    since = iso(point.next_ms + 5 * MINUTE_MS)
    words = ["live", "--config", str(file), "--data", str(data), "--guardian", "trailing_stop: 0.1, 1", "--json"]
    _, whole, _ = asked(capsys, *words)
    _, part, _ = asked(capsys, *words, "--since", since)
    assert part["sinceMs"] == point.next_ms + 5 * MINUTE_MS
    assert 0 < part["present"]["fills"] < whole["present"]["fills"]
    for result in (whole, part):
        assert result["present"]["fills"] == result["present"]["recordedFills"]
        assert result["present"]["balanceUsd"] == result["present"]["recordedBalanceUsd"]
        assert [row["net_usd"] for row in result["settings"] if row["setting"]["trailing_stop.trailPct"] == "0.1"] == [
            "0"
        ]


def test_the_best_of_many_settings_is_deflated() -> None:
    """Twelve days of one-hour bars would take long: the returns are given."""
    history = lived(0, (TrailingStop(trail_pct=0.5),)).history
    with closing(Processes(history, 1, evaluate_setting)) as runner:
        result = what_if(history, read_grid(["trailing_stop: 0.2, 0.4"]), runner, lambda _: None)
    flat = [0.001, -0.001] * 6
    lucky = replace(
        result, effects=[replace(result.effects[0], returns=flat), replace(result.effects[1], returns=flat)]
    )
    assert "no improvement is shown (less than 0.95)" in [*lucky.notes()][-1]
    good = [0.01 + value for value in flat]
    better = replace(
        result, effects=[replace(result.effects[0], returns=good), replace(result.effects[1], returns=flat)]
    )
    assert "an improvement is likely" in [*better.notes()][-1]


def test_the_commands_of_the_guide_run(
    run: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On this test's daemon and backtest: their folder, their candles and an instant of their time."""
    data = write(minutes(HISTORY + BARS + 30, vol=0.001), tmp_path / "BTC_1m.csv")
    asyncio.run(lived_at_sandbox(config(tmp_path, 0.5).rename(tmp_path / "bot.yaml"), data))
    monkeypatch.chdir(tmp_path)
    lines = [shlex.split(line) for line in blocks("text", PAGES["guides/what-if"])[0].splitlines()]
    assert [words[2].split("/")[0] for words in lines] == ["live", "live", "runs"]
    begin = iso(START_MS + (HISTORY + 20) * MINUTE_MS)[:16]
    for words in lines:
        is_live = words[2] == "live"
        mine = {"2026-11-20": begin, "data": str(run[1]), words[2]: "live" if is_live else str(run[0])}
        given = [mine.get(word, word) for word in words] + (["--data", str(data)] if is_live else [])
        assert call(given[1:]) == 0, capsys.readouterr().err
    assert (tmp_path / "settings.csv").is_file()
