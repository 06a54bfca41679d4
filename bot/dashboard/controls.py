"""Changes from a browser: pause, resume, close, cancel, approve, refuse, kill. Each goes through the daemon's control
socket, as the commands do.

A change needs `--control`, the cookie, the change token of the page, a word that the person types, and the stamp of
what the person saw:
a change of something that is another thing by now is refused (`identity.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bot.dashboard.values import formatting, identity
from bot.dashboard.values.reading import NOW, Known
from bot.dashboard.values.snapshot import DaemonSnapshot

Data = dict[str, Any]
GONE: Final = "Nothing was sent: {subject} is not what the page showed any more. {now} Open the page again."


class Subject(NamedTuple):
    """What a control acts on now: in words, the stamp, and what the request says of it."""

    text: str
    stamp: str
    body: Data


class Seen(NamedTuple):
    """What the daemon says now, to find the subject of a control in."""

    snapshot: DaemonSnapshot
    proposals: Sequence[Mapping[str, Any]]
    proposals_known: Known = NOW

    @property
    def account(self) -> str:
        return identity.account_of(self.snapshot)

    @property
    def status(self) -> Mapping[str, Any]:
        return self.snapshot.status or {}


# who the journal and the log say that it was
BY: Final = "the dashboard"


class ControlAction(NamedTuple):
    """`word` is what the person types; `subject` finds what the control acts on: None if it is not there."""

    title: str
    what: str
    word: Callable[[str], str]
    path: str
    subject: Callable[[Seen, str], Subject | None]
    needs_name: bool = False
    is_dangerous: bool = False
    # acts on an entry that waits for approval
    is_of_proposal: bool = False


def _account(seen: Seen, _name: str) -> Subject:
    return Subject(_account_text(seen), identity.account_stamp(seen.account), {"by": BY})


def _account_text(seen: Seen) -> str:
    return f"the account {seen.account}" if seen.account else "the account of the daemon, which is not known now"


def _paused(seen: Seen, name: str) -> Subject | None:
    if not name:
        return _account(seen, name)._replace(text=f"every strategy on {_account_text(seen)}")
    return _strategy(seen, name)


def _resumed(seen: Seen, name: str) -> Subject | None:
    if name:
        return _strategy(seen, name)
    strategies = seen.status.get("strategies") or ()
    waiting = (seen.status.get("intents") or {}).get("waiting") or ()
    states = ", ".join(f"{strategy['name']} {strategy['state']}" for strategy in strategies)
    orders = "".join(
        f"; {intent['action']} {intent['market']} of {intent['strategy']} waits for you" for intent in waiting
    )
    stamp = identity.resume_stamp(seen.account, strategies, waiting)
    return Subject(f"every strategy on {_account_text(seen)} ({states or 'none is known'}{orders})", stamp, {"by": BY})


def _strategy(seen: Seen, name: str) -> Subject | None:
    for strategy in seen.status.get("strategies") or ():
        if strategy["name"] == name:
            why = f": {strategy['why']}" if strategy.get("why") else ""
            text = f"the strategy {name} ({strategy['state']}{why}) on {', '.join(strategy['markets'])}"
            return Subject(text, identity.strategy_stamp(seen.account, strategy), {"by": BY, "strategy": name})
    return None


def _position(seen: Seen, name: str) -> Subject | None:
    for position in seen.snapshot.positions:
        if position["market"] == name:
            size = f"{formatting.size(position['size'])} at {formatting.px(position['entry_px'])}"
            text = f"the position {name} {position['side']} {size}"
            body = {"market": name, "side": position["side"], "opened_ms": position.get("opened_ms") or 0}
            return Subject(text, identity.position_stamp(seen.account, position), body)
    return None


def _entry(seen: Seen, name: str) -> Subject | None:
    for order in seen.snapshot.orders:
        if order["oid"] == name and order["action"] == "open":
            size = f"{formatting.size(order['size'])} at {formatting.px(order['limit_px'])}"
            what = f"{order['market']} {order['side']} {size}"
            return Subject(f"the entry order {name}: {what}", identity.order_stamp(seen.account, order), {"oid": name})
    return None


def _proposal(seen: Seen, name: str) -> Subject | None:
    for proposal in seen.proposals:
        if name and proposal["id"].startswith(name.upper()):
            size = f"{proposal['size']} at about {proposal['est_px']} ({proposal['notional_usd']} USD)"
            what = f"{proposal['market']} {proposal['side']} {size}"
            stop = f"stop {proposal['stop_px']}" if proposal.get("stop_px") else "WITHOUT A STOP"
            text = f"the entry {name} of {proposal['strategy']}: {what}, {stop}"
            body = {"id": proposal["id"], "by": BY}
            return Subject(text, identity.proposal_stamp(seen.account, proposal), body)
    return None


ACTIONS: Final[Mapping[str, ControlAction]] = {
    "pause": ControlAction(
        "Pause",
        "No new entries; exits, stops and guardians continue. Resting entries may still fill. A pause stays in force"
        " over restarts.",
        lambda name: name or "pause",
        "/pause",
        _paused,
    ),
    "resume": ControlAction(
        "Resume",
        "Entries are allowed again. A named strategy also leaves its quarantine; without a name, orders that wait for a"
        " person are released.",
        lambda name: name or "resume",
        "/resume",
        _resumed,
    ),
    "close": ControlAction(
        "Close",
        "The daemon closes the whole position at the market, reduce-only. Its stop and targets end with it. The"
        " strategy may open again: pause it first.",
        lambda name: name,
        "/close",
        _position,
        needs_name=True,
    ),
    "cancel": ControlAction(
        "Cancel",
        "The entry order is canceled at the service. Stops and targets cannot be canceled, so that no position loses"
        " its stop.",
        lambda name: name,
        "/cancel",
        _entry,
        needs_name=True,
    ),
    "approve": ControlAction(
        "Approve",
        "The daemon sends this entry. If its price has moved more than 0.5 % from the price that was shown, nothing is"
        " sent and you are asked again.",
        lambda name: name,
        "/approve",
        _proposal,
        needs_name=True,
        is_of_proposal=True,
    ),
    "refuse": ControlAction(
        "Refuse",
        "The entry ends and nothing is sent. The strategy decides anew on its next bar.",
        lambda name: name,
        "/refuse",
        _proposal,
        needs_name=True,
        is_of_proposal=True,
    ),
    "kill": ControlAction(
        "Kill",
        "The service cancels all entries and blocks new ones until the account's owner lifts the kill switch. Stops"
        " stay.",
        lambda _name: "kill",
        "/kill",
        _account,
        is_dangerous=True,
    ),
}


def confirmation(action: ControlAction, name: str, subject: Subject) -> Data:
    """The values of the page that asks."""
    named = "every strategy" if not action.is_dangerous else "the account"
    return {
        "action": action,
        "name": name,
        "subject": f"{action.title} {name or named}",
        "acts_on": subject.text,
        "stamp": subject.stamp,
        "word": action.word(name),
        "key": f"dashboard-{secrets.token_hex(12)}",
    }


def other_ways(action_name: str) -> list[str]:
    """What still works when the daemon has not done it.

    The dashboard has no key of the account, so it cannot call the service itself.
    """
    if action_name != "kill":
        return []
    return ["bot kill, on the daemon's machine, and /kill of bot telegram call the service without the daemon."]


def missing(action: ControlAction, name: str, seen: Seen) -> str:
    """Why a control has nothing to act on: there is no such thing, or nobody knows whether there is."""
    why = seen.proposals_known.text if action.is_of_proposal else seen.snapshot.trouble
    if not why and not seen.snapshot.knows_account:
        why = "the daemon has not read its account yet"
    if why:
        return f"Whether there is something to {action.title.lower()} under the name {name} is not known: {why}"
    things = {
        "close": "no open position",
        "cancel": "no entry order",
        "approve": "no waiting entry",
        "refuse": "no waiting entry",
    }
    return (
        f"There is {things.get(action.title.lower(), 'no strategy')} {name} now, so there is nothing to"
        f" {action.title.lower()}."
    )


def body_of(action: ControlAction, subject: Subject, key: str, form: Mapping[str, str]) -> Data:
    """The body of the request to the daemon."""
    if action.is_dangerous:
        return {"flatten": form.get("flatten") == "yes", "key": key, "by": BY}
    return subject.body


def answer_lines(action_name: str, answer: Mapping[str, Any]) -> list[str]:
    """The daemon's answer in sentences."""
    lines = []
    if action_name == "kill":
        result = answer["result"]
        lines.append(
            f"The kill switch is active ({result['guardian']['id']}): no position can be opened until the account's"
            " owner lifts it."
        )
        lines.append(f"Entries canceled: {len(result['canceledOids'])}.")
        lines += [f"Closed: {trade['symbol']} {trade['side']} {trade['size']}." for trade in result["trades"]]
        lines += [
            f"Open: {position['coin']} {position['side']} {position['size']}." for position in result["positions"]
        ]
        return lines
    if action_name == "close":
        return [
            (
                f"The {answer['market']} position is closed."
                if answer["closed"]
                else f"The close of {answer['market']} is on its way."
            )
        ]
    if action_name == "cancel":
        return [f"The order {answer['oid']} is canceled."]
    if action_name in ("approve", "refuse"):
        what = "not sent" if action_name == "refuse" else answer["state"]
        return [
            (
                f"{answer['id'][:12]} is {answer['answer']}: the entry in {answer['market']} of {answer['strategy']} is"
                f" {what}."
            )
        ]
    lines += [f"{strategy['name']}: {strategy['state']}." for strategy in answer.get("strategies", ())]
    if resting := answer.get("resting"):
        lines.append(f"Resting entries can still fill: {', '.join(resting)}.")
    lines += [f"Reviewed: {name}." for name in answer.get("looked_at", ())]
    if answer.get("forgotten"):
        lines.append(f"NOT SAVED: {answer['forgotten']}.")
    return lines
