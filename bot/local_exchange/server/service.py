"""The exchange as a running service: it lets time pass, performs requests in order, and logs what changes the state."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from bot.errors import ConfigError
from bot.local_exchange import switches
from bot.local_exchange.engine import listing, timeline
from bot.local_exchange.engine.prices import Prices, RecordedPrices, SimulatedPrices
from bot.local_exchange.engine.records import Report
from bot.local_exchange.engine.state import Exchange, new_exchange
from bot.local_exchange.faults import KINDS, ExchangeFault, ExchangeFaults, fault_in
from bot.local_exchange.server import control
from bot.local_exchange.server.clock import ExchangeClock
from bot.local_exchange.server.store import FORMAT, ExchangeStore
from bot.local_exchange.server.visibility import Visibility
from bot.local_exchange.wire import info, requests
from bot.logs import log
from bot.money import parse_e8

Json = dict[str, Any]
HEADER: Final = ("ts", "open", "high", "low", "close")


@dataclass(frozen=True, slots=True)
class ExchangeServiceOptions:
    """`speed`: 0 manual, 1 real.

    `prices`: simulated, held (only /control moves them) or COIN=FILE of candles. `db` None: in memory.
    """

    network: str = "testnet"
    speed: float = 1.0
    db: Path | None = None
    seed: int = 1
    prices: str = "simulated"
    start_ms: int | None = None
    switches: Mapping[str, str] = field(default_factory=dict)
    block_ms: int = 0


class ExchangeService:
    """Everything but sockets. Not thread-safe: one event loop calls it."""

    def __init__(self, options: ExchangeServiceOptions) -> None:
        self.options = options
        self.faults = ExchangeFaults()
        self.listeners: list[Callable[[list[Report]], None]] = []
        self._store = ExchangeStore(options.db)
        rows = list(self._store.rows())
        start_ms = rows[-1][0] if rows else options.start_ms
        self.clock = ExchangeClock(options.speed, start_ms)
        first_ms = rows[0][0] if rows else self.clock.now_ms()
        self.exchange = new_exchange(options.network, options.seed, first_ms, dict(options.switches))
        listing.list_markets(self.exchange)
        self.prices = prices_of(options.prices, self.exchange)
        self.chance = Random(f"{options.seed}:serving")
        self.visibility = Visibility(Random(f"{options.seed}:visibility"))
        header = {"format": FORMAT, "network": options.network, "seed": options.seed, "prices": options.prices}
        if rows:
            self._replay(header, rows)
            now_ms = max(self.clock.now_ms(), self.exchange.now_ms)
            timeline.hold_prices(self.exchange, now_ms)
            self._store.append(now_ms, "resume", None)
        else:
            self._store.append(first_ms, "start", header | {"switches": dict(options.switches)})

    def close(self) -> None:
        self._store.close()

    def _replay(self, header: Json, rows: Iterable[tuple[int, str, Any]]) -> None:
        """Perform the log again."""
        for at_ms, kind, body in rows:
            if kind == "start":
                known = {name: body.get(name) for name in header}
                if known != header:
                    raise ConfigError(
                        f"the database was made with {known}, and this start asks for {header}: "
                        "use the same, or another file"
                    )
                self.exchange.switches = {**switches.defaults(), **body["switches"], **self.options.switches}
                continue
            if kind == "resume":
                timeline.hold_prices(self.exchange, at_ms)
            timeline.advance(self.exchange, self.prices, at_ms)
            if kind == "action":
                requests.submit(self.exchange, requests.Signed(*body))
            elif kind == "control":
                control.perform(self.exchange, body.pop("command"), body)
            self.exchange.reports.clear()

    # ── Requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def pass_time(self) -> int:
        """Do what is due, and tell the channels. Returns the exchange's time."""
        now_ms = max(self.clock.now_ms(), self.exchange.now_ms)
        timeline.advance(self.exchange, self.prices, now_ms)
        self.publish()
        return now_ms

    def publish(self) -> None:
        reports, self.exchange.reports = self.exchange.reports, []
        for listener in self.listeners:
            listener(reports)

    def info(self, query: Any) -> tuple[Any, int]:
        """The answer of an info request, and its weight."""
        now_ms = self.pass_time()
        return info.answer(self.visibility.shown(self.exchange, query, now_ms), query)

    def read(self, body: Any) -> requests.Signed:
        """Parse a request of /exchange and recover its signer."""
        return requests.read(self.exchange, body)

    def perform(self, signed: requests.Signed) -> Json:
        """Perform a signed request; it is in the log before this returns."""
        now_ms = self.pass_time()
        self.visibility.hide(self.exchange, signed, now_ms)
        answer = requests.submit(self.exchange, signed)
        if answer.took_nonce:
            self._store.append(now_ms, "action", list(signed))
        if answer.body["status"] == "err":
            log.info(
                "exchange.refused",
                action=signed.action["type"],
                signer=signed.signer,
                answer=answer.body["response"],
                explain=answer.hint or signed.hint or None,
            )
        self.publish()
        return answer.body

    def command(self, name: str, body: Mapping[str, Any]) -> Json:
        """Perform a control command. BadCommand says what is wrong with it."""
        now_ms = self.pass_time()
        if name in ("advance", "state") and (
            unknown := [field for field in body if (name, field) != ("advance", "ms")]
        ):
            raise control.BadCommand(f"{name} has no field {unknown[0]!r}")
        if name == "advance":
            return self._advance(body)
        if name == "fault":
            return self._fault(body)
        if name == "state":
            return control.state(self.exchange)
        if name not in control.COMMANDS:
            raise control.BadCommand(f"there is no command {name!r}; there are {', '.join((*control.COMMANDS, *OWN))}")
        answer = control.perform(self.exchange, name, body)
        self._store.append(now_ms, "control", {**body, "command": name})
        self.publish()
        return answer

    def _advance(self, body: Mapping[str, Any]) -> Json:
        if not self.clock.is_manual:
            raise control.BadCommand("only a manual clock is advanced; start with --clock manual")
        ms = control.milliseconds(body)
        self.clock.advance(ms)
        now_ms = self.pass_time()
        self._store.append(now_ms, "advance", None)
        return {"now": now_ms}

    def _fault(self, body: Mapping[str, Any]) -> Json:
        """A fault between client and exchange, or one of the exchange itself."""
        if body.get("point") == "exchange":
            kind = str(body.get("kind"))
            if kind not in KINDS["exchange"]:
                raise control.BadCommand(f"kind at exchange is one of {', '.join(KINDS['exchange'])}, not {kind!r}")
            return self.command(kind, {name: value for name, value in body.items() if name not in ("point", "kind")})
        wrong = fault_in(body)
        if wrong is None:
            fault = ExchangeFault(**body)
            wrong = self.faults.add(fault)
        if wrong is not None:
            raise control.BadCommand(wrong)
        self.publish()
        return {"waiting": len(self.faults.waiting)}


OWN: Final = ("advance", "fault", "state")


# ── Prices ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def prices_of(text: str, exchange: Exchange) -> Prices | None:
    """`simulated`, `held` (None), or COIN=FILE. ConfigError for anything else."""
    if text == "held":
        return None
    if text == "simulated":
        return SimulatedPrices(exchange.seed, exchange.venue.markets)
    coin, given, name = text.partition("=")
    if not given or coin not in exchange.coins:
        raise ConfigError(
            f"prices {text!r} must be simulated, held, or COIN=FILE with one of {', '.join(exchange.coins)}"
        )
    market = exchange.coins[coin].market
    return RecordedPrices(coin, market, read_candles(Path(name)), exchange.now_ms)


def read_candles(path: Path) -> list[tuple[int, int, int, int, int]]:
    """Candles of a CSV file with the columns ts, open, high, low, close. ConfigError names the line of a mistake."""
    rows: list[tuple[int, int, int, int, int]] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            missing = [name for name in HEADER if name not in (table.fieldnames or ())]
            if missing:
                raise ConfigError(
                    f"{path}: the first line lacks the columns {', '.join(missing)}; it needs {','.join(HEADER)}"
                )
            for number, row in enumerate(table, start=2):
                try:
                    ts = int(row["ts"])
                    opened, high, low, close = (parse_e8(row[name]) for name in HEADER[1:])
                except (TypeError, ValueError) as error:
                    raise ConfigError(f"{path}:{number}: {error}; write numbers without exponent") from None
                if not 0 < low <= min(opened, close) <= max(opened, close) <= high:
                    raise ConfigError(f"{path}:{number}: low <= open, close <= high must hold, and all are positive")
                rows.append((ts, opened, high, low, close))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; give a CSV file with {','.join(HEADER)}") from error
    if not rows:
        raise ConfigError(f"{path} has no candle; give a CSV file with {','.join(HEADER)}")
    return rows
