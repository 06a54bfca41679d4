"""What must be so of an account and a journal, whatever happened on the way. Pure: reads the service's own events and
trades, and the journal's rows.

Events and trades are bodies of the interface; rows are those of the table `intents`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

from bot.runtime.model.intents import FINAL

Event = Mapping[str, Any]
Row = Mapping[str, Any]

# the source of the daemon's orders
OURS: Final = "agent"
# the guardian that acts when the daemon is silent
DEAD_MAN: Final = "dead_man_switch"
# The columns of a row that say what its order was for.
CAUSE: Final = ("epoch", "strategy", "market", "cause", "ordinal", "leg")

Failure = Literal["doubled", "lost", "unsettled", "belief", "unprotected", "unguarded", "strategy", "error"]


class Finding(NamedTuple):
    """One broken promise."""

    kind: Failure
    text: str


def order_findings(
    rows: Sequence[Row], trades: Sequence[Event], *, settled: bool = True, buried: Set[str] = frozenset()
) -> list[Finding]:
    """Each accepted intent is exactly one trade with its key; a trade of ours without an intent there is none; none is
    doubled.

    `buried`: intents of a journal that was lost with all that was in it. `settled`: every intent must have its outcome.
    """
    ours = [trade for trade in trades if trade["source"] == OURS]
    counts = Counter(trade["idempotencyKey"] for trade in ours)
    by_id = {row["id"]: row for row in rows}
    findings = [Finding("doubled", f"{n} orders have the key {key}") for key, n in counts.items() if n > 1]
    causes = Counter(cause_of(by_id[key]) for key in counts if key in by_id)
    findings += [Finding("doubled", f"{n} orders for one decision: {cause}") for cause, n in causes.items() if n > 1]
    findings += [
        Finding("lost", f"an order left that was not written: {key}")
        for key in counts
        if key not in by_id | dict.fromkeys(buried)
    ]
    trade_of = {trade["idempotencyKey"]: trade["id"] for trade in ours}
    for key, row in by_id.items():
        order = f"{row['action']} {row['market']} of {row['strategy']} ({key[:8]}) is {row['state']}"
        if settled and row["state"] not in FINAL:
            findings.append(Finding("unsettled", f"{order} and never ended: {row['code']} {row['message']}"))
        if row["action"] == "cancel":
            continue
        if row["state"] == "accepted" and not counts[key]:
            findings.append(Finding("lost", f"{order}, and there is no trade"))
        elif row["state"] == "accepted" and row["trade_id"] != trade_of[key]:
            findings.append(Finding("lost", f"{order}, and has the trade of another"))
        elif row["state"] in ("rejected", "expired") and counts[key]:
            findings.append(Finding("lost", f"{order}, and there is a trade"))
    return findings


def cause_of(row: Row) -> tuple[Any, ...]:
    """What an order was for. Two orders with one cause are one decision that was carried out twice."""
    return tuple(row[name] for name in CAUSE)


class Bare(NamedTuple):
    """A position that our orders opened has no stop from one instant to another."""

    coin: str
    from_ms: int
    to_ms: int


def bare_spans(
    events: Sequence[Event], our_keys: Set[str], *, end_ms: int, sleepers: Set[str] = frozenset()
) -> list[Bare]:
    """When positions of ours had no stop. `sleepers`: guardians that are no stop before they are activated."""
    since: dict[str, int] = {}
    spans: list[Bare] = []
    for at_ms, bare in bare_markets(events, our_keys, sleepers=sleepers):
        for coin in [known for known in since if known not in bare]:
            spans.append(Bare(coin, since.pop(coin), at_ms))
        for coin in bare:
            since.setdefault(coin, at_ms)
    spans += [Bare(coin, at_ms, end_ms) for coin, at_ms in since.items()]
    return [span for span in spans if span.to_ms > span.from_ms]


def bare_markets(
    events: Sequence[Event], our_keys: Set[str], *, sleepers: Set[str] = frozenset()
) -> Iterator[tuple[int, list[str]]]:
    """At the end of each instant: the markets with a position that our orders opened and without a stop or a
    trailing stop.
    """
    size: dict[str, Decimal] = {}
    is_ours: dict[str, bool] = {}
    stands: dict[str, set[str]] = {}
    for instant in instants(events):
        for event in instant:
            coin, data = event.get("coin", ""), event["data"]
            if event["type"] == "fill":
                before = size.get(coin, Decimal(0))
                size[coin] = Decimal(data["positionSize"])
                if not size[coin]:
                    is_ours[coin] = False
                    stands[coin] = set()
                elif event["subtype"] == "entry":
                    is_ours[coin] = (bool(before) and is_ours.get(coin, False)) or event.get(
                        "idempotencyKey"
                    ) in our_keys
            elif event["type"] == "order" and data["kind"] == "stop_loss":
                here = stands.setdefault(coin, set())
                (here.add if event["subtype"] in ("armed", "changed") else here.discard)(data["oid"])
            elif event["type"] == "trigger":
                stands.setdefault(coin, set()).discard(data["oid"])
            elif event["type"] == "guardian" and data["guardianType"] == "trailing_stop":
                here = stands.setdefault(coin, set())
                name = data["guardianId"]
                is_stop = event["subtype"] == "activated" or (event["subtype"] == "armed" and name not in sleepers)
                (here.add if is_stop else here.discard)(name)
        yield (
            instant[0]["ts"],
            [coin for coin, held in size.items() if held and is_ours.get(coin) and not stands.get(coin)],
        )


def unguarded_entries(events: Sequence[Event], our_keys: Set[str], *, late: Set[str] = frozenset()) -> list[Event]:
    """The fills of our market entries while no dead-man switch stood.

    `late`: ids of requests whose switch may have gone while they were on their way.
    """
    standing: set[str] = set()
    fills: list[Event] = []
    for event in events:
        data = event["data"]
        if event["type"] == "guardian" and data["guardianType"] == DEAD_MAN:
            (standing.add if event["subtype"] == "armed" else standing.discard)(data["guardianId"])
        elif event["type"] == "fill" and event["subtype"] == "entry" and data["kind"] == "market":
            is_ours = event.get("idempotencyKey") in our_keys and event.get("requestId") not in late
            fills += [event] if is_ours and not standing else []
    return fills


def instants(events: Sequence[Event]) -> list[list[Event]]:
    """The events of one cause together: a request with all that it brought, or what one moment of the clock did."""
    groups: list[list[Event]] = []
    request: object = None
    for event in events:
        its = event.get("requestId")
        if not groups or groups[-1][0]["ts"] != event["ts"] or (its is not None and its != request):
            groups.append([])
            request = its
        groups[-1].append(event)
    return groups


def belief_findings(account_state: Any, account: Mapping[str, Any]) -> list[Finding]:
    """What the daemon believes of the account, where the service has something else.

    `account` is the body of GET /v1/account.
    """
    theirs = {position["coin"]: (position["side"], Decimal(position["size"])) for position in account["positions"]}
    ours = {position.market: (position.side, position.size) for position in account_state.positions.values()}
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("positions", ours, theirs),
        ("orders", set(account_state.orders), {order["oid"] for order in account["orders"]}),
        ("guardians", set(account_state.guardians), {guardian["id"] for guardian in account["guardians"]}),
        ("the balance", account_state.balance_usd, Decimal(account["balanceUsd"])),
    )
    return [
        Finding("belief", f"{name}: the daemon has {here}, the service {there}")
        for name, here, there in pairs
        if here != there
    ]
