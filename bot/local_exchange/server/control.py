"""Control of the exchange by a test or a person: money, prices, trades of others, switches, and faults of the exchange
itself.

Each command is a pure change of the exchange at an instant, so it can stand in the log and be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bot.clock import DAY_MS, MINUTE_MS
from bot.local_exchange import switches
from bot.local_exchange.engine import admission, lifecycle, listing, matching, timeline
from bot.local_exchange.engine.state import LIQUIDATOR, Coin, Exchange
from bot.local_exchange.engine.venue_rules import MICRO
from bot.local_exchange.wire import market_answers, queries, rows
from bot.local_exchange.wire.signatures import ADDRESS
from bot.money import parse_e8

Json = dict[str, Any]
UPGRADE_MS: Final = 3 * MINUTE_MS
MS_MOST: Final = 366 * DAY_MS


class BadCommand(ValueError):
    """A control command with a wrong field. The text names the field and what to write."""


def _coin(exchange: Exchange, body: Mapping[str, Any]) -> Coin:
    coin = exchange.coins.get(str(body.get("coin")))
    if coin is None:
        raise BadCommand(f"coin is one of {', '.join(exchange.coins)}, not {body.get('coin')!r}")
    return coin


def _address(body: Mapping[str, Any], name: str = "address") -> str:
    value = body.get(name)
    if not isinstance(value, str) or not ADDRESS.fullmatch(value):
        raise BadCommand(f"{name} is 0x and 40 hexadecimal digits, not {value!r}")
    return value.lower()


def _amount(body: Mapping[str, Any], name: str, *, least: int = 1) -> int:
    """A positive amount: text or a whole number."""
    value = body.get(name)
    try:
        amount = parse_e8(str(value) if isinstance(value, str | int) else "")
    except ValueError:
        raise BadCommand(f'{name} is a positive decimal as text, like "100.5", not {value!r}') from None
    if amount < least:
        raise BadCommand(f"{name} is at least {rows.amount(least)}, not {value!r}")
    return amount


def _px(coin: Coin, body: Mapping[str, Any], name: str) -> int:
    px = _amount(body, name)
    step = 10 ** (2 + coin.market.spec.sz_decimals)
    if px % step:
        raise BadCommand(
            f"{name} of {coin.name} has at most {6 - coin.market.spec.sz_decimals} decimals, not {body[name]!r}"
        )
    return px


def _credit_row(address: str, usd: str, dex: str) -> Json:
    """The ledger row of a credit. Money reaches another dex than the main one only from somewhere at the exchange."""
    if not dex:
        return {"type": "deposit", "usdc": usd}
    route = {"user": queries.NO_USER, "destination": address, "sourceDex": "spot", "destinationDex": dex}
    return {"type": "send", **route, "token": rows.COLLATERAL, "amount": usd, "usdcValue": usd, "fee": "0.0"}


def deposit(exchange: Exchange, body: Mapping[str, Any]) -> Json:
    """Credit an address with USD, in the main dex or another."""
    address, usd = _address(body), _amount(body, "usd", least=MICRO)
    dex = str(body.get("dex", ""))
    if dex not in {known.name for known in exchange.dexes}:
        raise BadCommand(f"dex is one of {', '.join(repr(known.name) for known in exchange.dexes)}, not {dex!r}")
    if usd % MICRO:
        raise BadCommand(f"usd has at most 6 decimals, not {body['usd']!r}")
    admission.deposit(exchange, address, usd, dex=dex)
    admission.tell_ledger(exchange, address, _credit_row(address, rows.usd(usd), dex))
    return {
        "address": address,
        "accountValue": rows.clearinghouse(exchange, exchange.users[address], dex)["marginSummary"]["accountValue"],
    }


def price(exchange: Exchange, body: Mapping[str, Any]) -> Json:
    """Move a market: mid, mark and oracle become `px`, or `mark` and `oracle` if given.

    `volume` limits what resting orders fill.
    """
    coin = _coin(exchange, body)
    optional = {name: _px(coin, body, name) for name in ("mark", "oracle") if name in body}
    volume = _amount(body, "volume", least=0) if "volume" in body else None
    timeline.set_price(exchange, coin, _px(coin, body, "px"), volume=volume, **optional)
    return market_answers.context_of(exchange, coin)


def trade(exchange: Exchange, body: Mapping[str, Any]) -> Json:
    """Another participant takes `sz` from the book, at no price beyond `px` if it is given."""
    coin = _coin(exchange, body)
    if body.get("side") not in ("B", "A"):
        raise BadCommand(f"side is B (buys) or A (sells), not {body.get('side')!r}")
    size = _amount(body, "sz")
    if size % coin.market.lot:
        raise BadCommand(f"sz of {coin.name} has at most {coin.market.spec.sz_decimals} decimals, not {body['sz']!r}")
    exchange.block += 1
    exchange.block_is_action = False
    bound = _px(coin, body, "px") if "px" in body else None
    return {"filled": rows.amount(timeline.take(exchange, coin, buy=body["side"] == "B", size=size, bound=bound))}


def switch(exchange: Exchange, body: Mapping[str, Any]) -> Json:
    """Choose the answer to an open question."""
    fault = switches.fault_of(str(body.get("name")), str(body.get("value")))
    if fault is not None:
        raise BadCommand(fault)
    exchange.switches[body["name"]] = body["value"]
    return dict(exchange.switches)


def post_only(exchange: Exchange, body: Mapping[str, Any]) -> Json:
    """A network upgrade: only Alo orders for some minutes."""
    exchange.post_only_until_ms = exchange.now_ms + milliseconds(body, UPGRADE_MS)
    return {"until": exchange.post_only_until_ms}


def delist(exchange: Exchange, body: Mapping[str, Any]) -> Json:
    """Delist a market: orders are canceled, positions are settled at the oracle price."""
    coin = _coin(exchange, body)
    coin.is_delisted = True
    coin.book.ladder = ([], [])
    exchange.block += 1
    exchange.block_is_action = False
    for user in exchange.users.values():
        lifecycle.cancel_all(exchange, user, "delistedCanceled", coins={coin.name})
    for name in list(coin.market.holders):
        address = name.partition("/")[0]
        matching.close_apart(exchange, exchange.users[address], coin, coin.market.oracle, "Settlement")
    return {"coin": coin.name}


def rules(exchange: Exchange, body: Mapping[str, Any]) -> Json:
    """Change the size decimals or the smallest order of a market, as the exchange does at times."""
    coin = _coin(exchange, body)
    decimals = body.get("szDecimals")
    if decimals is not None and (
        isinstance(decimals, bool) or not isinstance(decimals, int) or not 0 <= decimals <= coin.market.spec.sz_decimals
    ):
        raise BadCommand(f"szDecimals is a whole number from 0 to {coin.market.spec.sz_decimals}, not {decimals!r}")
    least = _amount(body, "minNotional") if "minNotional" in body else None
    listing.change_rules(coin, sz_decimals=decimals, min_notional=least)
    return {"coin": coin.name, "szDecimals": coin.market.spec.sz_decimals}


def revoke_agent(exchange: Exchange, body: Mapping[str, Any]) -> Json:
    agent = exchange.agents.get(_address(body))
    if agent is None:
        raise BadCommand(f"no agent has the address {body.get('address')!r}")
    admission.remove_agent(exchange, exchange.users[agent.master], agent.name)
    return {"address": agent.address}


def empty_budget(exchange: Exchange, body: Mapping[str, Any]) -> Json:
    user = exchange.users.get(_address(body))
    if user is None:
        raise BadCommand(f"no account has the address {body.get('address')!r}")
    user.requests = 2 * admission.budget_of(user) + 100_000
    user.next_spare_ms = exchange.now_ms + admission.SPARE_MS
    return {"nRequestsUsed": user.requests}


class Command(NamedTuple):
    """A command and the fields that its body may have."""

    perform: Callable[[Exchange, Mapping[str, Any]], Json]
    fields: tuple[str, ...]


COMMANDS: Final[Mapping[str, Command]] = {
    "deposit": Command(deposit, ("address", "usd", "dex")),
    "price": Command(price, ("coin", "px", "mark", "oracle", "volume")),
    "trade": Command(trade, ("coin", "side", "sz", "px")),
    "switch": Command(switch, ("name", "value")),
    "post_only": Command(post_only, ("ms",)),
    "delist": Command(delist, ("coin",)),
    "rules": Command(rules, ("coin", "szDecimals", "minNotional")),
    "revoke_agent": Command(revoke_agent, ("address",)),
    "empty_budget": Command(empty_budget, ("address",)),
}


def perform(exchange: Exchange, name: str, body: Mapping[str, Any]) -> Json:
    """Perform a command. BadCommand names an unknown field."""
    command = COMMANDS[name]
    unknown = [field for field in body if field not in command.fields]
    if unknown:
        raise BadCommand(f"{name} has no field {unknown[0]!r}; it has {', '.join(command.fields)}")
    return command.perform(exchange, body)


def milliseconds(body: Mapping[str, Any], default: int | None = None) -> int:
    """The field `ms`: a whole number of milliseconds."""
    ms = body.get("ms", default)
    if isinstance(ms, bool) or not isinstance(ms, int) or not 0 <= ms <= MS_MOST:
        raise BadCommand(f"ms is a whole number of milliseconds from 0 to {MS_MOST}, not {ms!r}")
    return ms


def state(exchange: Exchange) -> Json:
    """The state of the exchange for a test: time, network, switches, prices, accounts, liquidator and block."""
    return {
        "now": exchange.now_ms,
        "network": exchange.network,
        "switches": dict(exchange.switches),
        "prices": {coin.name: rows.amount(coin.market.mark) for coin in exchange.coins.values()},
        "accounts": {
            name: {"raw": rows.usd(raw.usd), "sums": {cause: rows.usd(e8) for cause, e8 in raw.sums.items()}}
            for name, raw in exchange.raw.items()
        },
        "liquidator": rows.usd(exchange.users[LIQUIDATOR].spot_usd),
        "block": exchange.block,
    }
