"""Changes from a browser: pause, resume, close, cancel, approve, refuse, kill. Each goes through the daemon's control socket, as the commands do.

A change needs `--control`, the cookie, the change token of the page, and a word that the person types.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

Data = dict[str, Any]

BY: Final = "the dashboard"  # who the journal and the log say that it was


class Action(NamedTuple):
    """`word` is what the person types; `body` gives the request's body from the name, the idempotency key and the form."""

    title: str
    what: str
    word: Callable[[str], str]
    path: str
    body: Callable[[str, str, Mapping[str, str]], Data]
    needs_name: bool = False
    is_dangerous: bool = False


def _strategy(name: str, _key: str, _form: Mapping[str, str]) -> Data:
    return {"by": BY} | ({"strategy": name} if name else {})


ACTIONS: Final[Mapping[str, Action]] = {
    "pause": Action(
        "Pause", "No new entries; exits, stops and guardians continue. Resting entries may still fill. A pause stays in force over restarts.",
        lambda name: name or "pause", "/pause", _strategy,
    ),
    "resume": Action(
        "Resume", "Entries are allowed again. A named strategy also leaves its quarantine; without a name, orders that wait for a person are released.",
        lambda name: name or "resume", "/resume", _strategy,
    ),
    "close": Action(
        "Close", "The daemon closes the whole position at the market, reduce-only. Its stop and targets end with it. The strategy may open again: pause it first.",
        lambda name: name, "/close", lambda name, _key, _form: {"market": name}, needs_name=True,
    ),
    "cancel": Action(
        "Cancel", "The entry order is canceled at the service. Stops and targets cannot be canceled, so that no position loses its stop.",
        lambda name: name, "/cancel", lambda name, _key, _form: {"oid": name}, needs_name=True,
    ),
    "approve": Action(
        "Approve", "The daemon sends this entry. If its price has moved more than 0.5 % from the price that was shown, nothing is sent and you are asked again.",
        lambda name: name, "/approve", lambda name, _key, _form: {"id": name, "by": BY}, needs_name=True,
    ),
    "refuse": Action(
        "Refuse", "The entry ends and nothing is sent. The strategy decides anew on its next bar.",
        lambda name: name, "/refuse", lambda name, _key, _form: {"id": name, "by": BY}, needs_name=True,
    ),
    "kill": Action(
        "Kill", "The service cancels all entries and blocks new ones until the account's owner lifts the kill switch. Stops stay.",
        lambda _name: "kill", "/kill", lambda _name, key, form: {"flatten": form.get("flatten") == "yes", "key": key, "by": BY}, is_dangerous=True,
    ),
}  # fmt: skip


def confirmation(action: Action, name: str) -> Data:
    """The values of the page that asks."""
    subject = (
        f"{action.title} {name}"
        if name
        else f"{action.title} the account"
        if action.is_dangerous
        else f"{action.title} every strategy"
    )
    return {
        "action": action,
        "name": name,
        "subject": subject,
        "word": action.word(name),
        "key": f"dashboard-{secrets.token_hex(12)}",
    }


def other_ways(action_name: str) -> list[str]:
    """What still works when the daemon has not done it. The dashboard has no key of the account, so it cannot call the service itself."""
    if action_name != "kill":
        return []
    return ["bot kill, on the daemon's machine, and /kill of bot telegram call the service without the daemon."]


def answer_lines(action_name: str, answer: Mapping[str, Any]) -> list[str]:
    """The daemon's answer in sentences."""
    lines = []
    if action_name == "kill":
        result = answer["result"]
        lines.append(
            f"The kill switch is active ({result['guardian']['id']}): no position can be opened until the account's owner lifts it."
        )
        lines.append(f"Entries canceled: {len(result['canceledOids'])}.")
        lines += [f"Closed: {one['symbol']} {one['side']} {one['size']}." for one in result["trades"]]
        lines += [f"Open: {one['coin']} {one['side']} {one['size']}." for one in result["positions"]]
        return lines
    if action_name == "close":
        return [
            f"The {answer['market']} position is closed."
            if answer["closed"]
            else f"The close of {answer['market']} is on its way."
        ]
    if action_name == "cancel":
        return [f"The order {answer['oid']} is canceled."]
    if action_name in ("approve", "refuse"):
        what = "not sent" if action_name == "refuse" else answer["state"]
        return [
            f"{answer['id'][:12]} is {answer['answer']}: the entry in {answer['market']} of {answer['strategy']} is {what}."
        ]
    lines += [f"{one['name']}: {one['state']}." for one in answer.get("strategies", ())]
    if resting := answer.get("resting"):
        lines.append(f"Resting entries can still fill: {', '.join(resting)}.")
    lines += [f"Reviewed: {one}." for one in answer.get("looked_at", ())]
    if answer.get("forgotten"):
        lines.append(f"NOT SAVED: {answer['forgotten']}.")
    return lines
