"""`bot replay`: run a journal or a backtest again on candles, and explain each difference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.backtest.rule_options import rules_of
from bot.cli.common.formatting import say_left_out
from bot.cli.common.param_types import Amount, Duration, Instant, Sided, reserved
from bot.cli.common.shared_options import LOTS, MAKER_FEES, json_option
from bot.cli.data.accept_flags import accepted, accepting
from bot.words import many

if TYPE_CHECKING:
    from bot.backtest.data.candles import Candles
    from bot.backtest.data.funding_rates import FundingRates
    from bot.backtest.engine.options import SessionOptions
    from bot.backtest.replay.comparison import ReplayResult
    from bot.backtest.replay.differences import Difference
    from bot.backtest.replay.records import RunRecord
    from bot.backtest.results.run_reader import StoredRun
    from bot.client import Client
    from bot.config import Settings

EPILOG: Final = """\b
Examples:
  bot replay configs/paper.yaml
  bot replay ~/.local/state/bot/demo
  bot replay ~/.local/state/bot/paper --config configs/paper.yaml --data data --latency 0.3s
  bot replay runs/paper-20261120T165637Z --data data --json

\b
WHAT is a config (for the journal of its daemon), a state directory (also the demo's), a journal.db, or the folder of a
backtest. The journal is only read. Exit code 0: every decision and fill is the same. 1: something differs. Each
difference has one of these causes:
  data      a bar differs                timing    filled later than at the next open
    code      the source has changed       price     spread, depth, tick, or the path inside a bar
    config    a param or limit changed     fee       another rate
    guardian  it fired on one side only    refused   the risk check or the service refused it
  operator  a person closed a position   foreign   someone else traded on the account
  funding   another rate or price
    down      the daemon was not running   follows   from an earlier difference
    unknown   the record does not show the cause
  Without --data the candles come from the service of the config. If an embedded service has ended, \
a copy of it is started for this.
"""
# lines of a table; --json has them all
SHOWN_MAX: Final = 60


@click.command(epilog=EPILOG)
@click.argument("what", type=click.Path(path_type=Path), metavar="WHAT")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The config of the replay. Default: the config that the journal or the folder names.",
)
@click.option(
    "--data",
    "data",
    multiple=True,
    metavar="FILE|FOLDER",
    help="Candles, as for bot backtest. Default: the candles that the service has.",
)
@click.option("--from", "start_ms", type=Instant(), help="Begin here. Default: the start of the record.")
@click.option("--to", "end_ms", type=Instant(), help="End here, exclusive. Default: the end of the record.")
@click.option(
    "--balance",
    type=Amount(),
    default=None,
    help="The account's balance at the start, if the record does not contain it.",
)
@click.option(
    "--path",
    type=click.Choice(("sl_first", "ohlc", "olhc", "adaptive")),
    default=None,
    help=(
        "The order in which a bar reaches its high and low. Default: adaptive, as in a sandbox; for a backtest, its"
        " own."
    ),
)
@click.option(
    "--latency", type=Duration(may_be_zero=True), default=None, help="Delay between decision and order: 300ms, 0.5s."
)
@click.option(
    "--fee", "fees", type=Sided("rate", "rate"), multiple=True, help="Taker fee: 0.05%. Default: the sandbox's."
)
@MAKER_FEES
@click.option("--spread", "spreads", type=Sided("rate", "bps"), multiple=True, help="Best ask over best bid: 2bps.")
@click.option("--depth", "depths", type=Sided("usd", "usd"), multiple=True, help="USD on the first of twenty levels.")
@click.option("--tick", "ticks", type=Sided("price", "price"), multiple=True, help="Grid of prices: 0.1.")
@LOTS
@click.option("--funding", "funding", multiple=True, metavar="FILE", help="Recorded rates (ts,rate).")
@accepting
@json_option("Everything as one JSON object on standard output.")
def replay(what: Path, config: Path | None, *, as_json: bool, **given: Any) -> int:
    """Run recorded trading again on candles, and explain each decision and fill that differs."""
    import json

    from bot import logs
    from bot.errors import Exit
    from bot.runtime.journal.queries import is_there

    logs.configure(pretty=None, level="error")
    with reserved(for_json=as_json):
        result = _of_run(what, config, given) if is_there(what / "manifest.json") else _of_journal(what, config, given)
    if as_json:
        click.echo(json.dumps(result.plain(), indent=1, ensure_ascii=False))
    else:
        for line in replay_lines(result):
            click.echo(line)
    return int(Exit.DONE if result.is_equal else Exit.ERROR)


def _of_journal(what: Path, config: Path | None, given: Mapping[str, Any]) -> ReplayResult:
    from bot.backtest.engine.options import SessionOptions
    from bot.backtest.engine.recorded_answers import AgentOptions
    from bot.backtest.inputs import traded
    from bot.backtest.replay.comparison import replay_journal
    from bot.backtest.replay.records import read_journal
    from bot.checks.config_check import checked_without_secrets
    from bot.errors import BotError
    from bot.runtime.journal import queries

    folder, own = folder_and_config(what)
    recorded = read_journal(folder, since_ms=given["start_ms"] or 0)
    file = config or own or noted_config(recorded, folder)
    settings, _ = checked_without_secrets(file)
    begins_ms = recorded.start_ms if given["start_ms"] is None else given["start_ms"]
    balance = given["balance"] or recorded.balance(begins_ms)
    if balance is None or balance <= 0:
        raise BotError(f"the journal in {folder} does not contain the account's first balance: give it with --balance")
    candles = candles_for(given, settings, recorded, file)
    fundings = _fundings(given, settings)
    ends_ms = recorded.end_ms if given["end_ms"] is None else given["end_ms"]
    for funding in fundings.values():
        funding.judged(begins_ms, ends_ms, accepted(dict(given)))
    rates = {market: rate_file.rates for market, rate_file in fundings.items()}
    options = SessionOptions(
        start_ms=given["start_ms"],
        end_ms=given["end_ms"],
        balance_usd=Decimal(balance),
        path=given["path"] or "adaptive",
        latency_ms=0 if given["latency"] is None else round(given["latency"] * 1000),
        rules=rules_of(given, traded(settings)),
        agents=AgentOptions("alike", folder / queries.FILE),
    )
    return replay_journal(recorded, settings, candles, options, rates=rates)


def _of_run(what: Path, config: Path | None, given: Mapping[str, Any]) -> ReplayResult:
    from dataclasses import replace

    from bot.backtest.engine.options import within
    from bot.backtest.inputs import traded
    from bot.backtest.replay.comparison import replay_run

    run, settings, candles, options, fundings = run_inputs(what, config, given)
    rates = {market: rate_file.rates for market, rate_file in fundings.items()}
    funding = {market: rate_file.sha256 for market, rate_file in fundings.items()}
    rules = rules_of(given, traded(settings))
    over = {name: rule.over(options.rules[name]) if name in options.rules else rule for name, rule in rules.items()}
    options = replace(
        options,
        rules={**options.rules, **over},
        path=given["path"] or options.path,
        latency_ms=options.latency_ms if given["latency"] is None else round(given["latency"] * 1000),
        balance_usd=given["balance"] or options.balance_usd,
        start_ms=options.start_ms if given["start_ms"] is None else given["start_ms"],
        end_ms=options.end_ms if given["end_ms"] is None else given["end_ms"],
    )
    options = within(options, candles)
    changed = _changed(run.manifest, settings, candles, funding)
    return replay_run(run, settings, candles, options, rates=rates, changed=changed)


def run_inputs(
    what: Path, config: Path | None, given: Mapping[str, Any]
) -> tuple[StoredRun, Settings, list[Candles], SessionOptions, dict[str, FundingRates]]:
    """What repeats the backtest in a folder: its config, the candles and the funding of --data and --funding, and its
    options.
    """
    from bot.backtest.engine.options import SessionOptions
    from bot.backtest.results.run_reader import read_run
    from bot.checks.config_check import checked_text, checked_without_secrets
    from bot.errors import BotError, ConfigError

    run = read_run(what)
    manifest = run.manifest
    options = SessionOptions.of_plain(manifest["options"])
    if config is not None:
        settings = checked_without_secrets(config)[0]
    else:
        name = f"{manifest['config']['name']}.yaml"
        try:
            settings = checked_text(manifest["config"]["text"], Path(name), options.listings or None)
        except ConfigError as error:
            here = f"a run stores the text of its config without its folder, so relative paths start at {Path.cwd()}"
            raise ConfigError(f"{error}\n{here}; give the file with --config", error.problems) from None
    series = ", ".join(f"{entry['market']} {entry['interval']} ({entry['candles']:,})" for entry in manifest["data"])
    if not given["data"]:
        raise click.UsageError(f"a run does not store its candles: give them with --data; they were {series}")
    candles = _read(given, settings, tuple(manifest["accepted"]), options.start_ms)
    fundings = _fundings(given, settings)
    if manifest["funding"] and not fundings:
        raise BotError(
            f"{what}: this backtest used recorded funding of {', '.join(manifest['funding'])}: give it with --funding"
        )
    return run, settings, candles, options, fundings


def folder_and_config(what: Path) -> tuple[Path, Path | None]:
    """The state directory that WHAT names, and the config if WHAT is a config."""
    from bot.backtest.results.run_reader import newest_run
    from bot.cli.common.daemon_client import folder_of
    from bot.cli.common.demo_folders import DemoFolder
    from bot.runtime.journal.queries import FILE, is_there

    if what.is_dir():
        if not is_there(what / FILE):
            what = DemoFolder(what).newest() or what
        if not (what / FILE).is_file():
            newest = newest_run(what)
            way = "no daemon has run there, and no backtest was written there"
            way = way if newest is None else f"give one of the backtests in it, like {newest}"
            raise click.UsageError(f"{what}: has neither a journal.db nor a manifest.json: {way}")
        return what, None
    if what.name == FILE and what.is_file():
        return what.parent, None
    if what.suffix in (".yaml", ".yml") and what.is_file():
        return folder_of(what), what
    if not what.exists():
        raise click.UsageError(
            f"there is no {what}: give a config, a state directory, a journal.db, or the folder of a backtest"
        )
    raise click.UsageError(f"{what}: is not a config (.yaml), state directory, journal.db or folder of a backtest")


def noted_config(recorded: RunRecord, folder: Path) -> Path:
    """The path of the config of the last start."""
    from bot.runtime.strategy_host.fingerprints import config_of

    noted = config_of(recorded.marks)
    if noted is None:
        raise click.UsageError(
            f"the journal in {folder} does not contain the path of its config: give it with --config"
        )
    if not Path(noted).is_file():
        raise click.UsageError(
            f"the journal in {folder} names the config {noted}, which does not exist: give the config with --config"
        )
    if not _is_of(Path(noted), folder):
        raise click.UsageError(
            f"the journal in {folder} names the config {noted}, which keeps its journal elsewhere. A journal may come"
            f" from others, and a config runs code: if you mean this config, give it with --config {noted}"
        )
    return Path(noted)


def _is_of(config: Path, folder: Path) -> bool:
    """Whether the config keeps its state in this folder, or lies in it."""
    from bot.cli.common.daemon_client import folder_of

    own = folder.resolve()
    return config.resolve().is_relative_to(own) or folder_of(config).resolve() == own


# ── Candles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def candles_for(given: Mapping[str, Any], settings: Settings, recorded: RunRecord, config: Path) -> list[Candles]:
    from bot.client.names import run_unheld

    if given["data"]:
        start_ms = recorded.start_ms if given["start_ms"] is None else given["start_ms"]
        return _read(given, settings, (), start_ms)
    return run_unheld(_asked(settings, recorded, config, given))


def _read(given: Mapping[str, Any], settings: Settings, also: tuple[str, ...], start_ms: int | None) -> list[Candles]:
    """The candles of --data, of the interval that a backtest from `start_ms` uses."""
    from bot.backtest.data import quality
    from bot.backtest.data.candles import load
    from bot.backtest.data.resampling import chosen
    from bot.backtest.inputs import shortest_intervals, traded

    paths = [Path(entry) for entry in given["data"]]
    held = load(paths, markets=traded(settings), every=True, report=say_left_out)
    read, _ = chosen(held, start_ms, shortest_intervals(settings))
    return quality.checked(read, accept=tuple(sorted({*accepted(dict(given)), *also})))[0]


async def _asked(settings: Settings, recorded: RunRecord, config: Path, given: Mapping[str, Any]) -> list[Candles]:
    """The service's candles: one-minute candles if they reach back to the start, otherwise those of the strategies'
    interval.
    """
    from bot.cli.data.candle_source import newest
    from bot.clock import iso
    from bot.errors import BotError
    from bot.wire import INTERVAL_MS

    start_ms = recorded.start_ms if given["start_ms"] is None else given["start_ms"]
    heard: dict[str, str] = {}
    for strategy in settings.strategies:
        for market in (*strategy.markets, *strategy.informative):
            heard[market] = min(heard.get(market, strategy.interval), strategy.interval, key=INTERVAL_MS.__getitem__)
    all_series = []
    async with _service(settings, config) as client:
        for market, interval in sorted(heard.items()):
            candles = await newest(client, market, "1m")
            if candles.at_ms[0] > start_ms and interval != "1m":
                candles = await newest(client, market, interval)
            if candles.at_ms[0] > start_ms:
                later = given.get("later", "--from")
                raise BotError(
                    f"{market}: the service keeps {candles.interval} candles from {iso(candles.at_ms[0])} on, and the"
                    f" record begins at {iso(start_ms)}: give older ones with --data, or begin later with {later}"
                )
            all_series.append(candles)
    return all_series


@asynccontextmanager
async def _service(settings: Settings, config: Path) -> AsyncIterator[Client]:
    """A client of the config's service.

    If an embedded service has ended, a copy of it runs, because running it would move its time.
    """
    import asyncio
    import shutil
    from tempfile import TemporaryDirectory

    from bot.cli.common.daemon_client import folder_of
    from bot.cli.data.candle_source import client_of
    from bot.cli.run.embedded_service import Embedded
    from bot.client import Client

    ended = Embedded(folder_of(config))
    if not settings.account.embedded or not ended.db.is_file() or ended.is_alive():
        async with client_of(config, None, otherwise="or give the candles with --data") as client:
            yield client
        return
    with TemporaryDirectory(prefix="bot-") as folder:
        section = settings.embedded
        copy = Embedded(
            Path(folder),
            clock=section.clock,
            speed=section.speed,
            seed=section.seed,
            markets=section.markets,
            data=tuple((entry.market, entry.file) for entry in section.data),
        )
        for file in (ended.db, ended.db.with_name(f"{ended.db.name}-wal")):
            if file.is_file():
                shutil.copyfile(file, copy.folder / file.name)
        try:
            async with Client((await asyncio.to_thread(copy.ensure)).base_url) as client:
                yield client
        finally:
            await asyncio.to_thread(copy.stop)


def _fundings(given: Mapping[str, Any], settings: Settings) -> dict[str, FundingRates]:
    from bot.backtest.inputs import fundings_of, traded

    return fundings_of(given["funding"], traded(settings))


# ── What has changed since a backtest ───────────────────────────────────────────────────────────────────────────────


def _changed(
    manifest: Mapping[str, Any], settings: Settings, candles: Sequence[Candles], funding: Mapping[str, str]
) -> dict[str, list[tuple[str, str]]]:
    from bot.backtest.backtest import strategies_of
    from bot.checks.config_check import checked_text
    from bot.errors import BotError
    from bot.runtime.strategy_host import fingerprints
    from bot.runtime.strategy_host.package_versions import code_sha256

    strategies = strategies_of(settings)
    sources = {strategy["name"]: strategy["sha256"] for strategy in strategies}
    now = fingerprints.mark_of(settings, sources)
    try:
        of_then = checked_text(manifest["config"]["text"], Path(f"{manifest['config']['name']}.yaml"))
    # The strategies' files have moved, so only their digests can be compared.
    except BotError:
        of_then = settings
    then = fingerprints.mark_of(
        of_then, sources | {strategy["name"]: strategy["sha256"] for strategy in manifest["strategies"]}
    )
    texts_by_strategy = fingerprints.changes(then | {"version": manifest["code"]["version"]}, now)
    all_of_them = texts_by_strategy.setdefault("", [])
    digests = {(entry["market"], entry["interval"]): entry["sha256"] for entry in manifest["data"]}
    for mine in candles:
        was = digests.get((mine.market, mine.interval))
        if was != mine.digest():
            text = "they did not contain it" if was is None else "its candles differ"
            all_of_them.append(("data", f"{mine.market} {mine.interval}: the data of the run: {text}"))
    all_of_them += [
        ("data", f"{market} funding: its rates differ")
        for market, was in manifest["funding"].items()
        if funding.get(market) != was
    ]
    imported = {strategy["name"]: strategy["packages"] for strategy in manifest["strategies"] if "packages" in strategy}
    for strategy in strategies:
        before, after = imported.get(strategy["name"], strategy["packages"]), strategy["packages"]
        for name in sorted({*before, *after}):
            versions = [packages.get(name, "not imported") for packages in (before, after)]
            if versions[0] != versions[1]:
                text = f"strategy {strategy['name']} imports {name}: {versions[0]} then, {versions[1]} now"
                texts_by_strategy.setdefault(strategy["name"], []).append(("code", text))
    if manifest["code"]["sha256"] != code_sha256():
        all_of_them.append(("code", "the source of bot has changed since the run"))
    return {name: texts for name, texts in texts_by_strategy.items() if texts}


# ── What a person sees ──────────────────────────────────────────────────────────────────────────────────────────────


def replay_lines(replayed: ReplayResult) -> list[str]:
    """The table for a terminal."""
    from statistics import median

    from bot.clock import iso

    counted = ", ".join(
        f"{many(recorded, name.removesuffix('s'))} then and {again:,} in the replay"
        for name, (recorded, again) in replayed.counts.items()
    )
    lines = [f"{replayed.name}: {iso(replayed.start_ms)[:19]} to {iso(replayed.end_ms)[:19]}", f"  {counted}"]
    if replayed.late_ms:
        lines.append(
            f"  market orders were filled {median(replayed.late_ms):,.0f} ms (median; at most"
            f" {max(replayed.late_ms):,}) after those of the replay"
        )
    lines += [f"  note: {note}" for note in replayed.notes]
    lines += [f"  changed: {text}" for text in replayed.changed]
    if replayed.is_equal:
        return [*lines, "  equal: every decision and every fill is the same"]
    causes: dict[str, int] = {}
    for difference in replayed.differences:
        causes[difference.cause] = causes.get(difference.cause, 0) + 1
    words = ", ".join(f"{name} {count:,}" for name, count in sorted(causes.items(), key=lambda item: -item[1]))
    count = len(replayed.differences)
    lines.append(f"  {many(count, 'difference')}: {words}")
    for difference in replayed.differences[:SHOWN_MAX]:
        lines += _difference_lines(difference)
    if len(replayed.differences) > SHOWN_MAX:
        lines.append(f"  and {len(replayed.differences) - SHOWN_MAX:,} more: --json has all of them")
    return lines


def _difference_lines(difference: Difference) -> list[str]:
    from bot.clock import iso

    who = " ".join(filter(None, (difference.market, difference.strategy)))
    return [
        f"  {iso(difference.at_ms)[:23]}  {difference.cause:<8}  {difference.what:<8}  {who}: {difference.why}",
        f"      then    {difference.recorded or 'nothing'}",
        f"      replay  {difference.replayed or 'nothing'}",
    ]
