"""What a page and a control are about. It is fixed when the page is loaded and never worked out again.

A page that was opened for one account, market and interval never shows another: each update names all three. Updates
end with `Moved` when the daemon trades another account. A control names its subject by a stamp, and a change whose
stamp is no longer right is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bot.dashboard.values.snapshot import DaemonSnapshot

Data = Mapping[str, Any]

# the name of the account in the address of a page's updates
ACCOUNT: Final = "account"
STAMP_LETTERS: Final = 16


class Moved(Exception):
    """What the page is about has changed since it was loaded; the message is for its reader."""


def account_of(snapshot: DaemonSnapshot) -> str:
    """The address of the account; "" while it is not known."""
    return str((snapshot.status or {}).get("address") or "")


def check_account(given: str | None, snapshot: DaemonSnapshot) -> None:
    """Moved if the page was loaded for another account. None: the page is being loaded."""
    now = account_of(snapshot)
    if given is None or given == now or not now:
        return
    if not given:
        raise Moved(f"The account is known now: {now}. Reload the page.")
    raise Moved(f"This page shows the account {given}, and the daemon trades {now} now. Reload the page.")


def stamp(*parts: object) -> str:
    """A short mark of these values; another value gives another mark."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:STAMP_LETTERS]


def position_stamp(account: str, position: Data) -> str:
    """A stamp that stays equal while the position is open.

    A stop that moves or a part that is closed makes no other position.
    """
    return stamp("position", account, position["market"], position["side"], position.get("opened_ms"))


def order_stamp(account: str, order: Data) -> str:
    return stamp("order", account, order["oid"], order["market"], order["side"], order.get("limit_px"))


def proposal_stamp(account: str, proposal: Data) -> str:
    """Another size or price is another question, also if a newer plan has the same id."""
    figures = (proposal.get(name) for name in ("market", "side", "size", "shown_px", "stop_px"))
    return stamp("proposal", account, proposal["id"], *figures)


def strategy_stamp(account: str, strategy: Data) -> str:
    """The stamp changes with state and reason, so that a resume ends no quarantine that the person has not seen."""
    return stamp("strategy", account, strategy["name"], strategy["state"], strategy.get("why"))


def account_stamp(account: str) -> str:
    return stamp("account", account)


def resume_stamp(account: str, strategies: Iterable[Data], waiting: Iterable[Data]) -> str:
    """Resuming all releases what waits for a person, so that person must have seen all of it."""
    states = (f"{strategy['name']}={strategy['state']}" for strategy in strategies)
    return stamp("resume", account, *states, *(intent["id"] for intent in waiting))
