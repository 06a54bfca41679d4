"""The lines of `bot ready`: each looks for its evidence and says what it reaches of the rule in `readiness.py`.

What is not found, or cannot be read, is not known: it is never a pass, and never a no.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from shlex import join, quote
from typing import Any, Final

from bot.checks.evidence import Evidence, Kind, Version, changes, version_of, without_code
from bot.checks.readiness import RULES, Readiness, ReadinessLine, State
from bot.clock import DAY_MS, iso, utc_day_start_ms
from bot.config import Settings
from bot.errors import BotError
from bot.number_text import ago, duration_ms, signed_usd, usd
from bot.runtime.alerts.health import EXPIRES_SOON_MS
from bot.runtime.control_plane.alarm_watch import BACKUP_AGE_MS_MAX, LAST_BACKUP
from bot.runtime.journal import proof_files, queries
from bot.runtime.liveness.clock_watch import SKEW_STOP_MS, SKEW_WARN_MS
from bot.runtime.strategy_host import fingerprints
from bot.wire.exchange_facts import ExchangeFact
from bot.words import many

# Half and all of the points of each line, as RULES has them in words.
DAYS: Final = (90, 365)
TRADES: Final = (30, 100)
# parts of what the trades earn before costs
COSTS: Final = (0.50, 0.25)
# parts of the daily loss limit
WORST: Final = (1.0, 0.8)
CHANCE: Final = (0.75, 0.95)
WORLDS: Final = (20, 100)
PROVED: Final = (5, 14)
SILENCED: Final = (1, 5)
BACKUP_MS: Final = (BACKUP_AGE_MS_MAX, DAY_MS)
SKEW_MS: Final = (SKEW_STOP_MS, SKEW_WARN_MS)
NOTICE_MS_MAX: Final = 30 * DAY_MS
# where `bot data` puts candles, for a command that has seen none
DATA: Final = ("data",)
SPACE: Final = "space.yaml"
# days before the newest for which a proof is asked
LOOK_BACK_DAYS: Final = 30


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What the service of a config said. `is_own`: it is embedded. `problem`: why something is not known."""

    is_own: bool = False
    # what the account's money is: sandbox, local, testnet or mainnet
    environment: str | None = None
    scopes: Sequence[str] | None = None
    missing_scopes: Sequence[str] = ()
    expires_ms: int | None = None
    skew_ms: float | None = None
    problem: str | None = None
    # the service refuses the key, and so every request: nothing can be traded
    is_refused: bool = False
    # what the embedded service knows of the agent of its account at an exchange
    agent: ExchangeFact | None = None


@dataclass(frozen=True, slots=True)
class ReadinessCase:
    """Everything that the lines read. `addresses`: each reference to an address for notices, and the key of its target
    (notifier.key_of); None if it cannot be read here. `unreadable`: why there is no evidence.
    """

    config: Path
    settings: Settings
    evidence: Sequence[Evidence]
    service: ServiceFacts
    now_ms: int
    addresses: Sequence[tuple[str, str | None]] = ()
    unreadable: str | None = None
    version: Version = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "version", version_of(self.settings))

    def of(self, kind: Kind) -> list[Evidence]:
        return [piece for piece in self.evidence if piece.kind == kind]

    def valid(self, kind: Kind) -> list[Evidence]:
        """The pieces of this version."""
        return [piece for piece in self.of(kind) if not self.changed(piece)]

    def changed(self, piece: Evidence) -> list[str]:
        """What has changed since a piece."""
        return changes(piece.version, self.version, [str(name) for name in piece.facts.get("chosen", ())])

    def command(self, name: str, *more: str) -> str:
        """A command on the candles that were used last."""
        used = next((piece.facts["data"] for piece in reversed(self.evidence) if piece.facts.get("data")), DATA)
        data = [word for given in used for word in ("--data", str(given))]
        return join(["bot", name, str(self.config), *data, *more])

    def sweep(self, *more: str) -> str:
        """A sweep. The params to try are a person's choice."""
        return f"write the params to try in {SPACE}, then {self.command('sweep', '--space', SPACE, *more)}"

    def lacking(self, line: str, kind: Kind, remedy: str) -> ReadinessLine:
        """The line of a kind that has no piece of this version."""
        pieces = self.of(kind)
        if not pieces:
            why = self.unreadable or f"no {kind.replace('_', '-')} of this config is recorded"
            return ReadinessLine(line, "not known", 0, why, remedy)
        change = self.changed(pieces[-1])
        text = f"the newest is of {iso(pieces[-1].at_ms)[:10]}, and since then {change[0]}"
        return ReadinessLine(line, "old", 0, text, remedy)


def readiness_of(case: ReadinessCase) -> Readiness:
    lines = {line.name: line for find in _FINDERS for line in find(case)}
    return Readiness(case.settings.name, [lines[name] for name in RULES])


def _at_least(value: float, bounds: tuple[float, float]) -> float:
    half, whole = bounds
    return 1 if value >= whole else 0.5 if value >= half else 0


def _at_most(value: float, bounds: tuple[float, float]) -> float:
    half, whole = bounds
    return 1 if value <= whole else 0.5 if value <= half else 0


# ── Backtests and sweeps ────────────────────────────────────────────────────────────────────────────────────────────


def _backtest(case: ReadinessCase) -> list[ReadinessLine]:
    remedy = case.command("backtest")
    valid = case.valid("backtest")
    names = ("tested period", "trades", "cost share", "worst day")
    if not valid:
        return [case.lacking(name, "backtest", remedy) for name in names]
    # The longest, whatever it earned: the best of several would be luck.
    piece = max(valid, key=lambda piece: (piece.facts["days"], piece.at_ms))
    facts = piece.facts
    where = f"({facts['folder']}, {iso(piece.at_ms)[:10]})"
    days, trades = facts["days"], facts["trades"]
    return [
        ReadinessLine("tested period", "known", _at_least(days, DAYS), f"{days:,.0f} days {where}", remedy),
        ReadinessLine("trades", "known", _at_least(trades, TRADES), f"{many(trades, 'trade')} {where}", remedy),
        _costs(case, facts, where),
        _worst_day(case, facts, where),
    ]


def _costs(case: ReadinessCase, facts: Mapping[str, Any], where: str) -> ReadinessLine:
    earned = facts["netUsd"] + facts["costsUsd"]
    remedy = case.sweep()
    if earned <= 0:
        text = f"the trades earned {signed_usd(earned)} USD before costs of {usd(facts['costsUsd'])} USD {where}"
        return ReadinessLine("cost share", "known", 0, text, remedy)
    part = facts["costsUsd"] / earned
    text = f"costs took {part:.0%} of {signed_usd(earned)} USD {where}"
    return ReadinessLine("cost share", "known", _at_most(part, COSTS), text, remedy)


def daily_loss_limit(settings: Settings, start_usd: float) -> float | None:
    """The loss of a day, in USD, at which the strategies or the account stop; None without such a limit."""
    limits = []
    each = [strategy.daily_loss_usd for strategy in settings.strategies]
    if all(limit is not None for limit in each):
        limits.append(float(sum((limit for limit in each if limit is not None), Decimal(0))))
    for guardian in settings.guardians:
        if guardian.type == "account_drawdown" and guardian.max_loss_pct_from_day_start is not None:
            limits.append(start_usd * float(guardian.max_loss_pct_from_day_start) / 100)
    return min(limits, default=None)


def _worst_day(case: ReadinessCase, facts: Mapping[str, Any], where: str) -> ReadinessLine:
    limit, worst = daily_loss_limit(case.settings, facts["startUsd"]), facts["worstDayUsd"]
    backtest = case.command("backtest")
    if limit is None:
        remedy = f"write daily_loss_usd at each strategy of {case.config}, then {backtest}"
        text = f"{signed_usd(worst)} USD, and the config has no daily loss limit {where}"
        return ReadinessLine("worst day", "known", 0, text, remedy)
    part = max(0.0, -worst) / limit
    text = f"{signed_usd(worst)} USD, {part:.0%} of the daily loss limit of {usd(limit)} USD {where}"
    remedy = f"trade a smaller size or raise the limit in {case.config}, then {backtest}"
    return ReadinessLine("worst day", "known", _at_most(part, WORST), text, remedy)


def _walk_forward(case: ReadinessCase) -> list[ReadinessLine]:
    remedy = case.sweep("--walk-forward", "train=90d,test=30d")
    valid = case.valid("walk_forward")
    if not valid:
        return [case.lacking("walk-forward", "walk_forward", remedy)]
    piece = valid[-1]
    chance = piece.facts["probability"]
    text = (
        f"probability {chance:.2f} that the true Sharpe ratio is above 0:"
        f" {signed_usd(piece.facts['returnPct'])} % over {many(piece.facts['windows'], 'test window')}"
        f" ({iso(piece.at_ms)[:10]})"
    )
    return [ReadinessLine("walk-forward", "known", _at_least(chance, CHANCE), text, remedy)]


def _deflated(case: ReadinessCase) -> list[ReadinessLine]:
    remedy = case.sweep()
    name, pieces = "deflated Sharpe", case.of("sweep")
    for piece in reversed(pieces):
        for trial in piece.facts["trials"]:
            if not changes(trial["version"], case.version):
                where = f"of {many(piece.facts['count'], 'trial')} (study {piece.facts['study']})"
                text = f"probability {trial['deflated']:.2f} that it is more than the luck {where}"
                return [ReadinessLine(name, "known", _at_least(trial["deflated"], CHANCE), text, remedy)]
    if pieces and pieces[-1].facts["trials"]:
        # The best trial comes first.
        change = changes(pieces[-1].facts["trials"][0]["version"], case.version)
        text = f"this config is no trial of the study {pieces[-1].facts['study']}: against its best, {change[0]}"
        best = (
            f"write the params of its best trial (bot sweep show {quote(pieces[-1].facts['study'])}) in {case.config}"
        )
        return [ReadinessLine(name, "old", 0, text, best)]
    return (
        [case.lacking(name, "sweep", remedy)]
        if not pieces
        else [ReadinessLine(name, "not known", 0, "the newest sweep has too few days or trials for it", remedy)]
    )


# ── Drills ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _drill(case: ReadinessCase) -> list[ReadinessLine]:
    remedy = case.command("drill", "--worlds", str(WORLDS[1]))
    valid = case.valid("drill")
    if not valid:
        return [case.lacking("drill", "drill", remedy), _dead_man(case, None, remedy)]
    passed: dict[tuple[str, int], bool] = {}
    for piece in valid:
        facts = piece.facts
        failed = set(facts["failed"])
        # A world that was run again has its newest outcome.
        for seed in range(facts["seed"], facts["seed"] + facts["worlds"]):
            passed[facts["ground"], seed] = seed not in failed
    bad = [seed for (_, seed), has_passed in passed.items() if not has_passed]
    text = f"{len(passed) - len(bad):,} of {many(len(passed), 'world')} passed ({iso(valid[-1].at_ms)[:10]})"
    share = 0 if bad else _at_least(len(passed), WORLDS)
    if bad:
        remedy = case.command("drill", "--worlds", "1", "--seed", str(bad[0]), "--steps")
    line = ReadinessLine("drill", "known", share, text, remedy)
    silenced = max(piece.facts["silenced"] for piece in valid)
    return [line, _dead_man(case, silenced, case.command("drill", "--worlds", str(WORLDS[1])))]


def _dead_man(case: ReadinessCase, silenced: int | None, drill: str) -> ReadinessLine:
    section = case.settings.dead_man
    if section is None:
        remedy = f"write dead_man: {{heartbeat_seconds: 300, on_miss: flatten}} in {case.config}, then {drill}"
        return ReadinessLine("dead-man", "known", 0, "off: if the daemon dies, nothing closes its positions", remedy)
    if silenced is None:
        return case.lacking("dead-man", "drill", drill)
    text = (
        f"acts ({section.on_miss}) after {section.heartbeat_seconds} s; {many(silenced, 'passed world')} of the drill"
    )
    return ReadinessLine("dead-man", "known", _at_least(silenced, SILENCED), f"{text} lost heartbeats", drill)


# ── Days on paper ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Days:
    """The proofs of one state directory, by what they are worth, and a whole day that has none."""

    good: int = 0
    unknown: int = 0
    old: int = 0
    newest: str = ""
    unproved: str | None = None
    config: str | None = None


def _proved_days(case: ReadinessCase) -> list[ReadinessLine]:
    folders = [case.settings.state_dir, *(Path(piece.facts["folder"]) for piece in case.of("paper")[-1:])]
    now = without_code(version_of(case.settings, is_filled=False))
    seen = [(folder, _days_in(folder, now)) for folder in dict.fromkeys(folders)]
    good, unknown, old = (sum(getattr(days, name) for _, days in seen) for name in ("good", "unknown", "old"))
    remedy = _days_remedy(case, seen)
    parts = [f"{many(good, 'day')} of this version without an unknown cause"]
    parts += [f"{many(unknown, 'day')} with one"] * bool(unknown)
    parts += [f"{many(old, 'day')} of another version"] * bool(old)
    newest = max(days.newest for _, days in seen)
    text = ", ".join(parts) + (f" (newest {newest})" if newest else "")
    state: State = "known" if good or unknown else "old" if old else "not known"
    if state == "not known":
        text = f"no proof of a day in {', '.join(str(folder) for folder, _ in seen)}"
    return [ReadinessLine("proved days", state, _at_least(good, PROVED), text, remedy)]


def _days_remedy(case: ReadinessCase, seen: Sequence[tuple[Path, _Days]]) -> str:
    for folder, days in seen:
        if days.unproved is not None:
            return join(["bot", "proof", "--state-dir", str(folder), "--day", days.unproved])
    config = next((days.config for _, days in reversed(seen) if days.config is not None), None)
    if config is not None:
        return f"bot run {quote(config)} for more days, with the section proof in it"
    if is_play_money(case.settings, case.service):
        return f"bot run {quote(str(case.config))} for days, with the section proof in it"
    return f"bot ready {quote(str(case.config))} --paper CONFIG, the config that has traded this on play money"


def _days_in(folder: Path, now: Version) -> _Days:
    days, marks, newest_ms = _Days(), [], 0
    with suppress(BotError), queries.opened(folder) as db:
        rows = queries.rows(db, "SELECT value FROM meta WHERE name=?", (fingerprints.NOTE,))
        marks = fingerprints.marks_in(rows[0]["value"] if rows else None)
        newest_ms = queries.newest_event_ms(db) or 0
        bars = queries.rows(db, "SELECT max(at_ms) AS at_ms FROM progress WHERE market NOT LIKE '@%'")
        newest_ms = max(newest_ms, bars[0]["at_ms"] or 0)
    days.config = fingerprints.config_of(marks)
    proved = proof_files.days(folder)
    for day in proved:
        document = proof_files.read_proof(folder, day)
        if document is None or document.get("isWhole") is not True:
            continue
        days.newest = day
        if not marks or _changed_in(marks, document.get("fromMs", 0), document.get("toMs", 0), now):
            days.old += 1
        elif (document.get("causes") or {}).get("unknown"):
            days.unknown += 1
        else:
            days.good += 1
    last_ms = utc_day_start_ms(newest_ms) - DAY_MS
    for at_ms in range(last_ms, last_ms - LOOK_BACK_DAYS * DAY_MS, -DAY_MS):
        is_lived = bool(marks) and marks[0]["atMs"] < at_ms + DAY_MS
        if is_lived and iso(at_ms)[:10] not in proved and not _changed_in(marks, at_ms, at_ms + DAY_MS, now):
            days.unproved = iso(at_ms)[:10]
            break
    return days


def _changed_in(marks: Sequence[Mapping[str, Any]], from_ms: int, to_ms: int, now: Version) -> bool:
    """True if a version that was in force in a span is not this one, or is not known."""
    before = [mark for mark in marks if mark["atMs"] <= from_ms][-1:]
    there = [*before, *(mark for mark in marks if from_ms < mark["atMs"] < to_ms)]
    return not there or any(changes(without_code(mark), now) for mark in there)


# ── Operation ───────────────────────────────────────────────────────────────────────────────────────────────────────


def is_play_money(settings: Settings, service: ServiceFacts) -> bool:
    """True if the money is known to be play money, or if nothing can be sent for real money."""
    account = settings.account
    if account.embedded:
        return account.network != "mainnet" or account.agent_key is None
    return service.environment in ("sandbox", "local", "testnet")


def missing_scopes(scopes: Sequence[str], settings: Settings) -> list[str]:
    """The scopes that the daemon of a config needs and a key does not have."""
    has_events = any(coin.startswith("event:") for strategy in settings.strategies for coin in strategy.markets)
    needed = ("read", "trade", *(["outcomes"] * has_events))
    return [scope for scope in needed if scope not in scopes]


def _alerts(case: ReadinessCase) -> list[ReadinessLine]:
    remedy = f"bot ready {quote(str(case.config))} --test-notice"
    if case.settings.notify is None:
        text = "no section notify: nobody hears of a daemon that needs help"
        return [ReadinessLine("alerts", "known", 0, text, f"write a section notify in {case.config}, then {remedy}")]
    newest: dict[str, tuple[int, bool]] = {}
    for piece in case.of("test_notice"):
        newest.update({key: (piece.at_ms, accepted is True) for key, accepted in piece.facts["targets"].items()})
    words, good, refused, old = [], 0, 0, 0
    for reference, key in case.addresses:
        at_ms, is_accepted = newest.get(key or "", (0, False))
        is_recent = case.now_ms - at_ms <= NOTICE_MS_MAX
        if key is None:
            words.append(f"{reference} cannot be read here")
        elif not at_ms:
            words.append(f"{reference} was never tested")
        elif not is_accepted:
            refused += 1
            words.append(f"{reference} did not accept the test notice {ago(case.now_ms - at_ms)}")
        else:
            good, old = good + is_recent, old + (not is_recent)
            words.append(f"{reference} accepted a test notice {ago(case.now_ms - at_ms)}")
    share = 1 if good == len(case.addresses) else 0.5 if good else 0
    state: State = "known" if good or refused else "old" if old else "not known"
    return [ReadinessLine("alerts", state, share, "; ".join(words), remedy)]


def _backup(case: ReadinessCase) -> list[ReadinessLine]:
    folder = case.settings.state_dir
    stamp = iso(case.now_ms)[:16].replace(":", "")
    remedy = join(["bot", "backup", f"{case.settings.name}-backup-{stamp}", "--config", str(case.config)])
    age_ms = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        age_ms = case.now_ms - int(json.loads((folder / LAST_BACKUP).read_bytes())["at_ms"])
    if age_ms is None or age_ms < 0:
        return [ReadinessLine("backup", "not known", 0, f"no backup of {folder} is noted", remedy)]
    state: State = "known" if age_ms <= BACKUP_MS[0] else "old"
    return [ReadinessLine("backup", state, _at_most(age_ms, BACKUP_MS), f"written {ago(age_ms)}", remedy)]


def _service(case: ReadinessCase) -> list[ReadinessLine]:
    service = case.service
    return [_key(case, service), _clock(case, service)]


def _key(case: ReadinessCase, service: ServiceFacts) -> ReadinessLine:
    doctor = f"bot doctor {quote(str(case.config))}"
    if service.is_own and case.settings.account.agent_key is not None:
        return _agent(case, service.agent)
    if service.is_own:
        return ReadinessLine("key", "known", 1, "the embedded service makes the daemon's key at each start")
    if service.scopes is None:
        return ReadinessLine("key", "not known", 0, service.problem or "the service does not say", doctor)
    if service.missing_scopes:
        text = f"lacks {', '.join(service.missing_scopes)} (it has {', '.join(service.scopes) or 'nothing'})"
        return ReadinessLine("key", "known", 0, text, f"create a key with these scopes at the service, then {doctor}")
    scopes = f"scopes {', '.join(service.scopes)}"
    if service.expires_ms is None:
        return ReadinessLine("key", "known", 1, f"{scopes}; it does not expire")
    left_ms = service.expires_ms - case.now_ms
    text = f"{scopes}; it expires at {iso(service.expires_ms)[:16]}"
    share = 1 if left_ms >= EXPIRES_SOON_MS else 0.5 if left_ms > 0 else 0
    return ReadinessLine("key", "known", share, text, f"create a new key at the service, then {doctor}")


def _agent(case: ReadinessCase, agent: ExchangeFact | None) -> ReadinessLine:
    """The agent's key takes the place of an API key: without it nothing can be sent to the exchange."""
    if agent is None or agent.level == "unknown":
        why = "the embedded service does not run or has not told it" if agent is None else agent.text
        remedy = f"bot run {quote(str(case.config))}, and bot ready again while it runs"
        return ReadinessLine("key", "not known", 0, f"the agent of the exchange account: {why}", remedy)
    share = {"ok": 1, "warn": 0.5, "fail": 0}[agent.level]
    return ReadinessLine("key", "known", share, agent.text, agent.fix or f"bot doctor {quote(str(case.config))}")


def _clock(case: ReadinessCase, service: ServiceFacts) -> ReadinessLine:
    if service.is_own:
        return ReadinessLine("clock", "known", 1, "the embedded service has this machine's clock")
    if service.skew_ms is None:
        why = service.problem or "the service sends no time"
        return ReadinessLine("clock", "not known", 0, why, f"bot doctor {quote(str(case.config))}")
    text = f"{duration_ms(abs(service.skew_ms))} from the service's"
    return ReadinessLine("clock", "known", _at_most(abs(service.skew_ms), SKEW_MS), text, "timedatectl set-ntp true")


_FINDERS: Final[Sequence[Callable[[ReadinessCase], list[ReadinessLine]]]] = (
    _backtest,
    _walk_forward,
    _deflated,
    _drill,
    _proved_days,
    _alerts,
    _backup,
    _service,
)
