"""Random sessions of an account at an exchange, as reports, with the raw ledger of the exchange beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from bot.venue.apply import Applied, apply
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import ExchangePosition, MarketSpec, ReportedExecution, State, VenueAccount
from bot.venue.storage import codec

BEGIN_MS = 1_767_225_600_000
COINS = {"BTC": (100_000 * E8, 5), "ETH": (2_500 * E8, 4), "SOL": (150 * E8, 2)}
ADDRESS = "0x" + "a1" * 20
NAME = "acc_00000001"


def listed(now_ms: int = BEGIN_MS) -> State:
    state = State()
    for coin, (px, decimals) in COINS.items():
        apply(state, c.ListMarket(MarketSpec(coin, sz_decimals=decimals), px), now_ms)
    return state


def adopt(cash: int, *positions: ExchangePosition, at_ms: int = BEGIN_MS) -> c.AdoptExchangeAccount:
    return c.AdoptExchangeAccount(NAME, ADDRESS, "me", "hyperliquid", "testnet", at_ms, cash, positions)


@dataclass
class Follower:
    """A state with one account that follows an exchange."""

    state: State = field(default_factory=listed)
    now_ms: int = BEGIN_MS

    @property
    def account(self) -> VenueAccount:
        return self.state.accounts[NAME]

    def take(self, *commands: c.Command) -> list[Applied]:
        applied = []
        for command in commands:
            self.now_ms += 1
            # The codec is on the way of every command of the log.
            applied.append(apply(self.state, codec.loads(codec.dumps(command)), self.now_ms))
        return applied


@dataclass
class RawLedger:
    """The exchange's own books: cash at cost and signed sizes."""

    cash: int
    sizes: dict[str, int] = field(default_factory=dict)
    fees: int = 0
    funding: int = 0
    transfers: int = 0


def session(random: Random, count: int = 40) -> tuple[list[c.Command], RawLedger]:
    """Commands of `count` reports in the order in which they happened, and what the exchange has after them."""
    raw = RawLedger(0)
    commands: list[c.Command] = []
    at_ms = BEGIN_MS
    for number in range(count):
        at_ms += random.choice((0, 1, 70, 3_000, 600_000))
        at_ms = max(at_ms, BEGIN_MS + 1)
        kind = random.choices(("fill", "funding", "transfer"), (8, 1, 1))[0]
        coin = random.choice(list(COINS))
        if kind == "transfer":
            amount = random.randint(-50_000_000, 80_000_000) * 100
            raw.cash, raw.transfers = raw.cash + amount, raw.transfers + amount
            commands.append(
                c.BookTransfer(NAME, f"0x{number}", at_ms, "deposit" if amount > 0 else "withdrawal", amount)
            )
        elif kind == "funding":
            # At most one an hour and market, as at the exchange.
            hour_ms = BEGIN_MS + (number + 1) * 3_600_000
            amount = random.randint(-5_000_000, 5_000_000) * 100
            raw.cash, raw.funding = raw.cash + amount, raw.funding + amount
            commands.append(c.BookFunding(NAME, coin, hour_ms, amount, raw.sizes.get(coin, 0) or 1, 12_500_000))
        else:
            commands.append(c.BookExecution(NAME, _fill(random, raw, coin, at_ms, number)))
    return commands, raw


def _fill(random: Random, raw: RawLedger, coin: str, at_ms: int, number: int) -> ReportedExecution:
    px, decimals = COINS[coin]
    lot, tick = 10 ** (8 - decimals), 10 ** (2 + decimals)
    before = raw.sizes.get(coin, 0)
    buy = random.choice((1, -1))
    whole = abs(before) if before * buy < 0 else 0
    size = random.choice((whole, whole // 2 // lot * lot, 2 * whole, 0)) or random.randint(1, 5_000) * lot
    paid = px * random.randint(900, 1_100) // 1_000 // tick * tick
    fee = random.randint(-20_000, 90_000) * 100
    assert paid * size % E8 == 0
    raw.cash -= buy * (paid * size // E8) + fee
    raw.fees += fee
    raw.sizes[coin] = before + buy * size
    kind = random.choices(("fill", "liquidation", "adl"), (18, 1, 1))[0] if before * buy < 0 else "fill"
    return ReportedExecution(
        coin,
        at_ms,
        number + 1,
        str(number // 2),
        random.choice((None, f"0x{number:032x}")),
        buy,
        size,
        paid,
        fee,
        before,
        random.random() < 0.5,
        kind,
    )
