"""`bot status`, `positions`, `orders`, `events`, `logs`: read commands. Data that may be out of date are marked OLD."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from shlex import quote
from textwrap import indent
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common import formatting
from bot.cli.common.daemon_client import where
from bot.cli.common.formatting import print_table
from bot.cli.common.shared_options import json_option
from bot.number_text import ago, duration, duration_ms
from bot.plain_text import one_line
from bot.words import many

if TYPE_CHECKING:
    from bot.cli.common.daemon_client import Place

# time since the last complete pass; a strategy's call may take five seconds of a pass
OLD_S: Final = 10.0
# time between two requests for new lines
FOLLOW_S: Final = 0.5
# time between two readings of what is watched
WATCH_S: Final = 1.0
# least difference between the clocks of the service and of its prices that is shown
APART_MS: Final = 1_000
# The daemon asks the service for the facts of an account at an exchange every 5 s.
OLD_FACTS_MS: Final = 30_000
# What the money of an account is, by the environment that the service reports.
MONEY_OF: Final = {
    "sandbox": ", play money",
    "local": ", play money of a local exchange",
    "testnet": ", play money of a test network",
}
# number of lines that the daemon keeps in memory
LINES_MAX: Final = 2_000

# attribution that belongs to no strategy
OTHERS: Final = {
    "@foreign": "trades of others, of the service itself, or from before this journal",
    "@netting": "difference between the account's average entry price and those of the strategies' shares",
}

STATUS = """\b
Examples:
  bot status
  bot status --config configs/paper.yaml --json

\b
Exit 0: the daemon runs and each of its positions has a stop. 3: the daemon does not run. 4: nor can this version start
it, because another version wrote its files. 6: one of its positions has no stop.
"""
POSITIONS = "\b\nExamples:\n  bot positions\n  bot positions --watch"
ORDERS = "\b\nExample:\n  bot orders"
EVENTS = """\b
Examples:
  bot events --limit 20
  bot events --since 2h --type fill,liquidation
  bot events --since evt_00000000000000000042 --json
"""
LOGS = """\b
Examples:
  bot logs -n 50
  bot logs -f
"""


@click.command(epilog=STATUS)
@where
@json_option("The daemon's answer as one JSON object.")
def status(config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    """Show the state of the daemon, its account and its profit.

    If the daemon does not run: the last state in its journal and its age, with exit code 3.
    """
    from bot.checks.file_versions import stored_problems
    from bot.cli.common.daemon_client import NotRunning, find
    from bot.errors import Exit

    place = None
    try:
        place = find(config, state_dir)
        answer = place.ask("GET", "/status")
    except NotRunning as error:
        last, why_not = (None, "") if place is None else _last(place)
        unreadable = [] if place is None else stored_problems(place.folder, embedded=True)
        if as_json:
            message = "; ".join(filter(None, (str(error), why_not, *unreadable)))
            click.echo(json.dumps({"running": False, "state": "NOT_RUNNING", "message": message, "last": last}))
        else:
            click.echo(f"NOT RUNNING  {error}")
            if place is not None:
                for line in [f"  {why_not}"] if last is None else _last_lines(last):
                    click.echo(line)
                for problem in unreadable:
                    click.echo(f"  CANNOT START  {problem}")
                named = "CONFIG" if place.config is None else quote(str(place.config))
                click.echo(
                    f"Start it: bot run {named}. Close everything without it: bot kill --flatten --config {named}"
                )
        return int(Exit.CONFIG if unreadable else Exit.NOT_RUNNING)
    if as_json:
        click.echo(json.dumps({"running": True, **answer}))
    else:
        for line in status_lines(answer):
            click.echo(line)
    return int(Exit.DONE if answer.get("is_safe", True) else Exit.UNSAFE)


@click.command(epilog=POSITIONS)
@where
@click.option("--watch", is_flag=True, help="Show them anew every second, until Ctrl-C or the daemon's end.")
@json_option("Data instead of a table.")
def positions(config: Path | None, state_dir: Path | None, *, watch: bool, as_json: bool) -> int:
    """List the open positions, each with its stop and trailing stops. Asks the running daemon."""
    from bot.cli.common.daemon_client import find

    place = find(config, state_dir)
    if watch:
        return _watched(place, as_json=as_json)
    return _show_positions(place.ask("GET", "/positions"), as_json=as_json)


def _show_positions(answer: Mapping[str, Any], *, as_json: bool) -> int:
    """Print the positions. Returns the exit code."""
    from bot.errors import Exit

    _warn_if_old(answer)
    if as_json:
        click.echo(json.dumps(answer))
    else:
        columns = ("market", "side", "size", "entry_px", "mark_px", "unrealized_usd", "stop", "target_px", "strategy")
        rows = [
            {**position, "stop": stop_of(position), "strategy": _holders(position)} for position in answer["positions"]
        ]
        print_table(rows, columns, empty=_empty(answer, "no open position"))
    return int(Exit.UNSAFE if any(map(_is_unsafe, answer["positions"])) else Exit.DONE)


def _watched(place: Place, *, as_json: bool) -> int:
    """Show the positions every second. A daemon that does not answer is said so, and asked again."""
    import time

    from bot.cli.common.daemon_client import NotRunning, Silent
    from bot.clock import SystemClock, iso
    from bot.errors import Exit

    code = int(Exit.DONE)
    try:
        while True:
            if not as_json:
                # Only a terminal is cleared; a file keeps every reading.
                click.clear()
                click.echo(iso(SystemClock().now_ms()))
            try:
                code = _show_positions(place.ask("GET", "/positions"), as_json=as_json)
            except Silent as error:
                click.echo(f"{error}; asking again", err=True)
            time.sleep(WATCH_S)
    except NotRunning:
        click.echo("the daemon has ended", err=True)
        return int(Exit.NOT_RUNNING)
    except KeyboardInterrupt:
        return code


def stop_of(position: Mapping[str, Any]) -> str:
    """The position's stop order and trailing stops as text.

    A stop order for only a part of the position does not count.
    """
    px = position["stop_px"]
    # A daemon of an older version does not send these fields.
    trails = position.get("trailing_stops", ())
    trailing = ["trailing" if trail["active"] is not False else "trailing (not active yet)" for trail in trails]
    # Between a fill and the event of its stop it is not known.
    if position["protected"] is None:
        return ", ".join(["not known", *trailing])
    if not position["protected"]:
        return ", ".join(
            ["NO STOP" if px is None else f"NO STOP for the whole position, {formatting.px(px)} for a part", *trailing]
        )
    fixed = [] if px is None else [formatting.px(px)]
    return ", ".join(fixed + trailing) or "trailing"


def _holders(position: Mapping[str, Any]) -> str | None:
    """The position's strategy; for a shared position each strategy with its share."""
    shares: Mapping[str, str] = position.get("shares") or {}
    return " + ".join(f"{name} {size}" for name, size in shares.items()) if len(shares) > 1 else position["strategy"]


def _is_unsafe(position: Mapping[str, Any]) -> bool:
    """True if a strategy's position has no stop and the config demands one.

    A daemon of an older version does not send `needs_stop`.
    """
    return position["protected"] is False and position["strategy"] is not None and position.get("needs_stop", True)


@click.command(epilog=ORDERS)
@where
@json_option("Data instead of a table.")
def orders(config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    """List the orders that rest at the service: entries, armed stops and targets. Asks the running daemon."""
    from bot.cli.common.daemon_client import find
    from bot.errors import Exit

    answer = find(config, state_dir).ask("GET", "/orders")
    _warn_if_old(answer)
    if as_json:
        click.echo(json.dumps(answer))
    else:
        columns = ("oid", "market", "kind", "side", "action", "size", "limit_px", "trigger_px", "strategy")
        print_table(answer["orders"], columns, empty=_empty(answer, "no resting order"))
    return int(Exit.DONE)


@click.command(epilog=EVENTS)
@where
@click.option(
    "--since", default=None, metavar="WHEN", help="An event's id, or how far back: 30m, 2h, 1d (of the service's time)."
)
@click.option(
    "--type",
    "types",
    default=None,
    metavar="TYPES",
    help="fill, order, trigger, guardian, funding, liquidation, settlement, account; type.subtype narrows it.",
)
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many at most.")
@json_option("The events as the service sent them.")
def events(
    config: Path | None, state_dir: Path | None, since: str | None, types: str | None, limit: int, *, as_json: bool
) -> int:
    """List the account's events from the journal: the newest, or those since WHEN.

    Works also if the daemon does not run.
    """
    from bot.cli.common.daemon_client import find, of_journal
    from bot.errors import Exit
    from bot.runtime.journal import queries

    place = find(config, state_dir, dead_too=True)
    since_id, back_ms = _since(since)
    wanted = _types(place, types or "")

    def of_file() -> dict[str, Any]:
        with queries.opened(place.folder) as db:
            return {"events": queries.events(db, since_id=since_id, back_ms=back_ms, types=wanted, limit=limit)}

    query = {"since": since_id, "back_ms": back_ms, "type": ",".join(wanted) or None, "limit": limit}
    listed = of_journal(place, "/events", query, of_file)["events"]
    if as_json:
        click.echo(json.dumps({"running": place.is_running(), "events": listed}))
        return int(Exit.DONE)
    from bot.clock import iso
    from bot.runtime.journal.order_trace import event_step

    for event in listed:
        text = event_step(event).text
        line = f"{iso(event['ts'])}  {event['id']}  {event['type']:<11} {event.get('coin') or '':<8} {text}"
        click.echo(one_line(line.rstrip()))
    if not listed:
        click.echo("no event")
    return int(Exit.DONE)


@click.command(epilog=LOGS)
@where
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, LINES_MAX),
    default=100,
    show_default=True,
    help="How many of the newest lines.",
)
@click.option("-f", "--follow", is_flag=True, help="Then show each new line, until Ctrl-C or the daemon's end.")
@json_option("One JSON object a line.")
def logs(config: Path | None, state_dir: Path | None, lines: int, *, follow: bool, as_json: bool) -> int:
    """Show the daemon's log.

    If the daemon does not run (exit 3) or does not answer (exit 5), show its last lines on disk.
    """
    from bot.cli.common.daemon_client import NotRunning, Silent, find
    from bot.errors import Exit
    from bot.runtime.control_plane.log_tail import FILE, last_lines

    place = find(config, state_dir)
    try:
        answer = place.ask("GET", "/logs", query={"lines": lines})
    except (NotRunning, Silent) as error:
        click.echo(f"{error}; these are its last lines on disk", err=True)
        _show(last_lines(place.folder / FILE, lines), as_json=as_json)
        return int(error.exit_code)
    _show(answer["lines"], as_json=as_json)
    return _follow(place, answer["last"], as_json=as_json) if follow else int(Exit.DONE)


def _follow(place: Place, last: int, *, as_json: bool) -> int:
    import time

    from bot.cli.common.daemon_client import NotRunning
    from bot.errors import Exit

    try:
        while True:
            time.sleep(FOLLOW_S)
            answer = place.ask("GET", "/logs", query={"after": last, "lines": LINES_MAX})
            last = answer["last"]
            _show(answer["lines"], as_json=as_json)
    except NotRunning:
        click.echo("the daemon has ended", err=True)
        return int(Exit.NOT_RUNNING)
    except KeyboardInterrupt:
        return int(Exit.DONE)


# -- text


def _is_old(answer: Mapping[str, Any]) -> bool:
    # A daemon of an older version does not send this field.
    return (answer.get("old_s") or 0.0) > OLD_S


def _empty(answer: Mapping[str, Any], sentence: str) -> str:
    """The sentence of an empty list. Of an old answer it says that it was so then: unknown is not empty."""
    return f"{sentence} when the account was last read" if _is_old(answer) else sentence


def _warn_if_old(answer: Mapping[str, Any]) -> None:
    if _is_old(answer):
        click.echo(f"OLD: these data were read from the service {duration(answer['old_s'])} ago", err=True)


def status_lines(told: Mapping[str, Any]) -> Iterable[str]:
    from bot.clock import iso

    why = f": {told['why']}" if told.get("why") else ""
    yield (
        f"{told['state']}  {told['name']} (pid {told['pid']}, up"
        f" {duration_ms(told['at_ms'] - told['started_ms'])}){why}"
    )
    yield f"  service     {told['base_url']}{_money(told)}" + _clock(told.get("service"))
    if "account" not in told:
        yield (
            "  account     not known: the daemon has not read it yet, so its positions and orders are not known either"
        )
        return
    if _is_old(told):
        yield f"  OLD         account, positions and orders were read from the service {duration(told['old_s'])} ago"
    account = told["account"]
    value, free = formatting.usd(account["value_usd"]), formatting.usd(account["free_usd"])
    yield f"  account     {told['address']}, value {value} USD, free {free} USD, epoch {told['epoch']}"
    yield f"  profit      {_profit(told)}"
    bare = told["unprotected"]
    stops = (
        f"WITHOUT A STOP: {', '.join(bare)}"
        if bare
        else "each with its stop"
        if told["positions"]
        else _empty(told, "flat")
    )
    if foreign := told.get("foreign_unprotected"):
        ours = stops if bare else "each of ours with its stop"
        stops = f"{ours}, NOT OURS AND WITHOUT A STOP: {', '.join(foreign)}"
    yield f"  positions   {told['positions']}, {stops}; {many(told['orders'], 'order')}"
    doubt = told["intents"]
    yield (
        f"  intents     {doubt['open']} open, {doubt['in_doubt']} in doubt, {doubt['quarantined']} waiting for a person"
    )
    # A daemon of an older version does not send these fields.
    for intent in doubt.get("waiting", ()):
        why = f": {intent['message']}" if intent.get("message") else ""
        yield f"  waiting     {intent['action']} {intent['market']} of {intent['strategy']}{why}"
        yield f"              run bot explain {intent['id'][:12]}, check the account, then bot resume"
    yield _dead_man_line(told["heartbeat"])
    yield from _price_lines(told.get("prices"))
    yield from _exchange_lines(told)
    # A daemon of an older version does not send these fields.
    for alarm in told.get("alarms", ()):
        subject = f" {alarm['subject']}" if alarm["subject"] else ""
        yield f"  ALARM       {alarm['alarm'].replace('_', ' ')}{subject}: {alarm['message']}"
    for guardian in told["guardians"]:
        if not guardian["stands"]:
            yield f"  guardian    {guardian['name']} IS NOT ARMED; the daemon arms it again"
    # A daemon of an older version does not send these fields.
    for guardian in told.get("blocked_by", ()):
        until = "until 00:00 UTC, or until" if guardian["type"] == "account_drawdown" else "until"
        yield (
            f"  entries     REFUSED by the service: {guardian['type']} {guardian['id']} is active {until} the"
            " account's owner lifts it"
        )
    yield from _strategy_lines(told["strategies"])
    yield from _protection_lines(told.get("protections") or {})
    for other in told.get("other_books", ()):
        whose = OTHERS.get(other["name"], "no longer in the config")
        yield f"  book        {other['name']} net {formatting.usd(other['book']['net_usd'], signed=True)} USD: {whose}"
    if reload := told.get("reload"):
        yield f"  reload      {_reload_said(reload)}"
    passed = told["last_pass_ms"]
    if passed is not None:
        bar = "no bar yet" if told["last_bar_ms"] is None else f"last bar {iso(told['last_bar_ms'])}{_ago(told)}"
        yield f"  kernel      last pass {passed / 1000:.1f} s ago, {bar}"


def _strategy_lines(strategies: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for strategy in strategies:
        why = f": {strategy['why']}" if strategy["why"] else ""
        if strategy["state"] == "QUARANTINED":
            why += f"; fix it, then bot resume {strategy['name']}"
        if why and strategy.get("resting"):
            why += f"; resting entries can still fill: {', '.join(strategy['resting'])} (bot orders)"
        book = strategy.get("book")
        gain = f", net {formatting.usd(book['net_usd'], signed=True)} USD" if book and "net_usd" in book else ""
        bars = f"{', '.join(strategy['markets'])}, {strategy['interval']}"
        yield f"  strategy    {strategy['name']} {strategy['state']} on {bars}{gain}{why}"


def _protection_lines(protections: Mapping[str, Any]) -> Iterable[str]:
    """What the protections of the config refuse now, and how often they have refused.

    A daemon of an older version does not send them.
    """
    from bot.clock import iso

    for wait in protections.get("waits", ()):
        where = f" in {wait['market']}" if wait["market"] else ""
        name = f"{wait['strategy'] or 'the account'} {wait['protection']}"
        yield f"  protection  {name}: no entries{where} until {iso(wait['until_ms'])}: {wait['why']}"
    refused: dict[str, list[str]] = {}
    for row in protections.get("refused", ()):
        refused.setdefault(row["strategy"], []).append(f"{row['protection']} {row['count']}")
    for strategy, counts in refused.items():
        yield f"  protection  entries of {strategy} refused so far: {', '.join(counts)}"


def _dead_man_line(beat: Mapping[str, Any] | None) -> str:
    if beat is None:
        return "  dead-man    no heartbeat process (off, or the service's clock is moved by hand)"
    left_s = beat["deadline_s"]
    left = "not armed" if left_s is None else f"acts in {duration(left_s)} unless a heartbeat arrives"
    if left_s is not None and left_s < 0:
        left = f"MAY HAVE ACTED: its deadline passed {duration(-left_s)} ago without a heartbeat"
    trouble = f", last error {beat['error']}" if beat["error"] else ""
    return f"  dead-man    {left}, {many(beat['beats'], 'heartbeat')} tried{trouble}"


def _ago(told: Mapping[str, Any]) -> str:
    """How long ago the last bar closed, by the service's clock.

    A daemon of an older version does not send that clock.
    """
    now_ms = told.get("service_ms")
    return "" if now_ms is None else f", {duration_ms(max(0, now_ms - told['last_bar_ms']))} ago"


def _price_lines(prices: Mapping[str, Any] | None) -> Iterable[str]:
    """The source of the service's prices, and each market with something to say.

    A daemon of an older version does not send them.
    """
    from bot.clock import iso

    if prices is None:
        return
    since = f" since {iso(prices['since_ms'])}" if prices["since_ms"] is not None else ""
    if prices["connected"]:
        how = f" by {prices['transport']}" if prices["transport"] else ""
        state = f"connected{how}{since}"
    else:
        trouble = next(iter((prices["trouble"] or "it has sent no price yet").splitlines()))
        state = f"NOT CONNECTED{since}: {trouble}"
    apart_ms = abs(prices["clock_difference_ms"] or 0)
    clock = f", its clock is {apart_ms / 1000:.1f} s off" if apart_ms >= APART_MS else ""
    ages = [market["age_s"] for market in prices["markets"] if market["age_s"] is not None]
    oldest = f", oldest price {duration(max(ages))}" if ages else ""
    yield f"  prices      {prices['source']} {state}{clock}; {many(len(prices['markets']), 'market')}{oldest}"
    for name, reason in prices["missing"].items():
        yield f"  prices      without {name}: {reason}"
    for market in prices["markets"]:
        refused = ", ".join(
            f"{count} {reason.replace('_', ' ')}" for reason, count in market["refused"].items() if count
        )
        dropped = f"quotes refused: {refused}" if refused else ""
        closed = "" if market["open"] else f"CLOSED FOR OPENINGS since {iso(market['since_ms'])}: {market['reason']}"
        if closed or dropped:
            yield f"  prices      {market['market']} {'; '.join(filter(None, (closed, dropped)))}"


def _exchange_lines(told: Mapping[str, Any]) -> Iterable[str]:
    """What the service knows of the account at the exchange that it follows."""
    from bot.clock import iso

    service, known = told.get("service") or {}, told.get("exchange")
    if known is not None:
        if told.get("service_ms", 0) - known["as_of_ms"] > OLD_FACTS_MS:
            yield f"  exchange    AS OF {iso(known['as_of_ms'])}: the service has not answered since"
        for fact in known["facts"]:
            mark = "" if fact["level"] in ("ok", "unknown") else f"{fact['level'].upper()} "
            yield f"  exchange    {mark}{fact['name']}: {fact['line']}"
        return
    # The daemon has not asked the service for more yet.
    link = service.get("exchange_link")
    if link == "in_step":
        yield "  exchange    in step: everything until now is known"
    elif link is not None:
        yield f"  exchange    {link.upper()}: {service.get('exchange_reason') or 'no reason was told'}"


def _money(told: Mapping[str, Any]) -> str:
    """`play money` or `REAL MONEY`, as the service reports it. An environment that is not known is real money."""
    environment = (told.get("service") or {}).get("environment")
    if environment is None:
        # The service, or a daemon of an older version, does not report it.
        return ""
    return MONEY_OF.get(environment, f", REAL MONEY ({environment})")


def _profit(told: Mapping[str, Any]) -> str:
    """The profit of all strategies, including those removed from the config.

    Foreign activity on the account is not counted.
    """
    books = [strategy.get("book") or {} for strategy in told["strategies"]]
    books += [other["book"] for other in told.get("other_books", ()) if other["name"] != "@foreign"]
    today, total = (sum((Decimal(book.get(name, 0)) for book in books), Decimal(0)) for name in ("day_usd", "net_usd"))
    return (
        f"today {formatting.usd(today, signed=True)} USD, total {formatting.usd(total, signed=True)} USD (net of fees"
        " and funding; today since 00:00 UTC)"
    )


def _reload_said(reload: Mapping[str, Any]) -> str:
    if reload["ended_s"] is None:
        return f"under way for {duration_ms(reload['began_s'] * 1000)}"
    ago = f"{duration_ms(reload['ended_s'] * 1000)} ago"
    if reload["refused"]:
        return f"REFUSED {ago}: {'; '.join(reload['refused'])}"
    return f"{ago}: {'; '.join(reload['applied']) or 'nothing had changed'}"


def _clock(service: Mapping[str, Any] | None) -> str:
    if service is None:
        return ""
    speed = (
        ""
        if service["speed"] == 1
        else ", clock moved by hand"
        if not service["speed"]
        else f", clock {service['speed']:g}x"
    )
    skew = service["skew_ms"]
    return speed + (
        f", this machine's clock is {duration_ms(abs(skew))} off" if skew is not None and abs(skew) >= 2_000 else ""
    )


def _last(place: Place) -> tuple[dict[str, Any] | None, str]:
    """The last state in the journal, and "". Or None, and why there is none."""
    from bot.clock import SystemClock
    from bot.errors import JournalError
    from bot.runtime.journal import queries

    try:
        last = queries.last_state(place.folder)
    except queries.NotFound:
        return None, "it has no journal"
    except JournalError as error:
        return None, f"{error}; bot doctor says what to do"
    return {"age_ms": SystemClock().now_ms() - last.written_ms, **last._asdict()}, ""


def _last_lines(last: Mapping[str, Any]) -> Iterable[str]:
    yield f"  OLD: its journal was last written {ago(last['age_ms'])}; the account may have changed since:"
    yield f"  account     {last['address']}, epoch {last['epoch']}, last event {last['last_event_id']}"
    for position in last["positions"]:
        size = f"{position['size']} @ {formatting.px(position['entry_px'])}"
        yield f"  position    {position['market']} {position['side']} {size}"
    if not last["positions"]:
        yield "  positions   none when it was last written"
    for intent in last["open_intents"]:
        yield (
            f"  intent      {intent['id'][:12]} {intent['strategy']} {intent['action']} {intent['market']}:"
            f" {intent['state']}; the next start finds out what became of it"
        )


def _since(text: str | None) -> tuple[str | None, int | None]:
    """An event's id, or how far back in milliseconds."""
    if text is None or text.startswith("evt_"):
        return text, None
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text.strip(), re.ASCII)
    if match is None:
        raise click.UsageError(f"--since {text!r}: write an event's id, or 30m, 2h, 1d")
    return None, int(match[1]) * {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[match[2]]


def _types(place: Place, text: str) -> tuple[str, ...]:
    """The event types of --type. UsageError for one that does not exist."""
    from bot.errors import BotError
    from bot.runtime.journal import queries

    wanted = tuple(kind.strip() for kind in text.split(",") if kind.strip())
    # Without a journal the types are not checked here; the command itself reports that.
    with contextlib.suppress(BotError), queries.opened(place.folder) as db:
        if no := queries.no_such_type(db, wanted):
            raise click.UsageError(f"--type {no}")
    return wanted


def _show(lines: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    from bot.clock import iso

    for line in lines:
        if as_json:
            click.echo(json.dumps(dict(line), ensure_ascii=False))
            continue
        at = iso(line["at_ms"]) if "at_ms" in line else line.get("timestamp", "")
        fields = " ".join(
            f"{name}={value}"
            for name, value in line.items()
            if value is not None and name not in ("seq", "at_ms", "timestamp", "level", "event", "exception")
        )
        head = one_line(f"{at}  {line.get('level', ''):<8} {line['event']:<22} {fields}".rstrip())
        trace = line.get("exception")
        # Its lines are indented, so that no message in it looks like a line of the log.
        click.echo(f"{head}\n{indent(str(trace), '  ')}" if trace else head)
