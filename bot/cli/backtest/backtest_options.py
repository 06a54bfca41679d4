"""The options that say what a backtest runs on: candles, range, costs, outages.

`bot backtest` and `bot sweep` have all, `bot drill` some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.backtest.rule_options import RULES, rules_of
from bot.cli.common.formatting import say_left_out
from bot.cli.common.param_types import Amount, Capped, Duration, Instant, Out, ParamValue, SettledParam, Sided
from bot.cli.common.shared_options import LOTS, MAKER_FEES
from bot.cli.data.accept_flags import accepted, accepting

if TYPE_CHECKING:
    from bot.backtest.engine.recorded_answers import AgentOptions
    from bot.backtest.inputs import Inputs
    from bot.backtest.proof.calibration import Calibration

_MARKET = (
    click.option(
        "--data",
        "data",
        multiple=True,
        required=True,
        metavar="FILE|FOLDER",
        help="Candles: CSV, CSV.gz or Parquet, or a folder of them; MARKET=FILE names the market. Repeatable.",
    ),
    click.option(
        "--param",
        "params",
        type=ParamValue(),
        multiple=True,
        metavar="STRATEGY.PARAM=VALUE",
        help=(
            "A param of a strategy of the config: trend.fast_bars=8, or trend.protections.max_entries=5. The results"
            " record the changed config. Repeatable."
        ),
    ),
    click.option(
        "--from",
        "start_ms",
        type=Instant(),
        help=(
            "Begin here, or with the first candle if that is later. Earlier candles are history. Default: the start of"
            " the data."
        ),
    ),
    click.option("--to", "end_ms", type=Instant(), help="End here, exclusive. Default: the end of the data."),
    click.option(
        "--balance", type=Amount(), default="10000", show_default=True, help="The account's balance at the start."
    ),
    click.option(
        "--path",
        type=click.Choice(("sl_first", "ohlc", "olhc", "adaptive")),
        default="sl_first",
        show_default=True,
        help="The order in which a bar reaches its high and low.",
    ),
    click.option(
        "--fee", "fees", type=Sided("rate", "rate"), multiple=True, help="Taker fee: 0.05%. Default: the service's."
    ),
    MAKER_FEES,
    click.option(
        "--spread",
        "spreads",
        type=Sided("rate", "bps"),
        multiple=True,
        help="Best ask over best bid: 2bps. Default: the service's, by turnover.",
    ),
    click.option(
        "--depth",
        "depths",
        type=Sided("usd", "usd"),
        multiple=True,
        help="USD on the first of twenty levels; 0 is unlimited.",
    ),
    click.option(
        "--tick",
        "ticks",
        type=Sided("price", "price"),
        multiple=True,
        help="Grid of prices: 0.1. Default: the service's five figures.",
    ),
    LOTS,
    click.option(
        "--fees-of",
        "fees_of",
        metavar="EXCHANGE",
        help=(
            "Fees, ticks, lots and smallest orders of this exchange, as `bot data pull --from ccxt:EXCHANGE` stored"
            " them. --fee and others win over them."
        ),
    ),
    click.option(
        "--funding",
        "funding",
        multiple=True,
        metavar="FILE",
        help="Recorded rates (ts,rate); MARKET=FILE names the market. Default: the baseline.",
    ),
    click.option(
        "--cap",
        "caps",
        type=Capped(),
        multiple=True,
        metavar="NAME=VALUE",
        help=(
            "A cap of the key (maxExposureUsd, maxDailyNotionalUsd, maxLeverage, allowedCoins, maxOpenPositions) or of"
            " the account (maxTradeUsd, dailyTradeCapUsd). Repeatable."
        ),
    ),
)
_RUN = (
    click.option(
        "--latency",
        type=Duration(may_be_zero=True),
        default=None,
        help="Delay between decision and order: 300ms, 0.5s; less than a bar. Default: none.",
    ),
    click.option(
        "--calibration",
        type=click.Path(path_type=Path, dir_okay=False),
        default=None,
        metavar="FILE",
        help=(
            "Spread, fees and latency that live paid, from bot proof calibrate. --spread, --fee, --maker-fee and"
            " --latency win over it. The results name it."
        ),
    ),
    click.option(
        "--settle",
        "settlements",
        type=SettledParam(),
        multiple=True,
        help=(
            "An event market is settled: event:RATE-CUT=2025-03-20T18:00=yes. Without a time: where its candles end;"
            " without yes, no or a number from 0 to 1: as its last price says. Repeatable."
        ),
    ),
    click.option(
        "--approve",
        type=click.Choice(["all", "none"]),
        default="all",
        show_default=True,
        help=(
            "The answer to entries that wait for a person (`approve` in the config). A policy is asked as in a live"
            " run."
        ),
    ),
    click.option(
        "--agents",
        type=click.Choice(["replay", "live"]),
        default="replay",
        show_default=True,
        help=(
            "Answers of language models: recorded ones only, or the live model where none is recorded. Live answers are"
            " recorded."
        ),
    ),
    click.option(
        "--answers",
        type=click.Path(path_type=Path, dir_okay=False),
        default=None,
        help=(
            "File of recorded answers, or a daemon's journal.db to read.  [default: CONFIG.answers.jsonl beside CONFIG]"
        ),
    ),
    click.option(
        "--max-usd",
        type=click.FloatRange(0, 1_000_000),
        default=None,
        help="The most that --agents live may cost; required with it.",
    ),
    click.option(
        "--outage", "outages", type=Out(), multiple=True, help="The daemon is down: 2025-05-03T10:00+2h. Repeatable."
    ),
    click.option(
        "--outages", "outage_count", type=click.IntRange(0, 1_000), default=0, help="So many outages at seeded times."
    ),
    click.option("--outage-for", type=Duration(), default="30m", show_default=True, help="Their mean length."),
    click.option(
        "--seed", type=click.IntRange(0), default=1, show_default=True, help="Of everything that is left to chance."
    ),
)
# The values of options that a command does not offer.
WITHOUT_RUN: Final[Mapping[str, Any]] = {
    "latency": None,
    "calibration": None,
    "settlements": (),
    "approve": "all",
    "outages": (),
    "outage_count": 0,
    "outage_for": 0.0,
    "seed": 1,
    "agents": "replay",
    "answers": None,
    "max_usd": None,
}


def backtest_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options to a command, which passes them to `inputs_of`."""
    return _with((*_MARKET, *_RUN), command)


def market_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of candles, range and costs. The command passes them to `inputs_of` with WITHOUT_RUN."""
    return _with(_MARKET, command)


def _with(options: Sequence[Callable[..., Any]], command: Callable[..., Any]) -> Callable[..., Any]:
    return reduce(lambda wrapped, option: option(wrapped), reversed(options), accepting(command))


def _agents_of(given: Mapping[str, Any]) -> AgentOptions:
    from bot.backtest.engine.recorded_answers import AgentOptions

    is_live, file = given["agents"] == "live", given["answers"]
    if is_live and given["max_usd"] is None:
        raise click.UsageError("--agents live spends money: say how much at most with --max-usd, such as --max-usd 5")
    if not is_live and given["max_usd"] is not None:
        raise click.UsageError("--max-usd is for --agents live")
    if is_live and file is not None and file.suffix == ".db":
        raise click.UsageError(
            f"--answers {file}: a daemon's journal is only read; with --agents live give a file of JSON lines"
        )
    return AgentOptions(given["agents"], file, given["max_usd"] or 0.0)


def _calibration_of(given: Mapping[str, Any]) -> Calibration | None:
    if given["calibration"] is None:
        return None
    from bot.backtest.proof.calibration import read_calibration

    return read_calibration(given["calibration"])


def inputs_of(config: Path, given: Mapping[str, Any]) -> Inputs:
    """The options of the command with the files that they name, read and checked."""
    from bot.backtest.engine.options import MarketRules, SessionOptions
    from bot.backtest.inputs import Chance, Files, Inputs, traded
    from bot.checks.config_check import checked_without_secrets

    settings, _ = checked_without_secrets(config)
    agents = _agents_of(given)
    rules, calibration = rules_of(given, traded(settings)), _calibration_of(given)
    latency_ms = 0 if given["latency"] is None else round(given["latency"] * 1000)
    if calibration is not None:
        # An option for all markets wins too, so the calibration leaves its field to it.
        named = {rule: given[option] for option, rule in RULES.items()}
        measured = calibration.rules(traded(settings), [rule for rule, values in named.items() if values])
        none = MarketRules()
        rules |= {market: rules.get(market, none).over(rule) for market, rule in measured.items()}
        if given["latency"] is None and calibration.latency_ms is not None:
            latency_ms = round(calibration.latency_ms.value)
    options = SessionOptions(
        start_ms=given["start_ms"],
        end_ms=given["end_ms"],
        balance_usd=given["balance"],
        path=given["path"],
        latency_ms=latency_ms,
        rules=rules,
        outages=given["outages"],
        settlements=dict(given["settlements"]),
        seed=given["seed"],
        caps=dict(given["caps"]),
        approve=given["approve"],
        agents=agents,
        calibration="" if calibration is None else calibration.text,
    )
    files = Files(given["data"], given["funding"], given["fees_of"], accepted(dict(given)))
    chance = Chance(given["outage_count"], given["outage_for"] * 1000)
    return Inputs(config, files, options, params=dict(given["params"]), chance=chance, report=say_left_out)
