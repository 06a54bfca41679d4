"""Intents: what a strategy wants, under an id that is a function of the decision, and the moves that an intent may
make.

Plain values and one hash. Nothing here writes, checks risk or sends.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal, TypeVar, dataclass_transform

from bot.errors import JournalDamaged
from bot.wire import CloseRequest, OrderRequest

T = TypeVar("T")
State = Literal["opened", "planned", "sending", "accepted", "rejected", "expired", "void", "quarantined"]
Action = Literal["open", "close", "cancel"]
# dry run and confirm; or one request
Path = Literal["plan", "direct"]
# market, id of the trade, action
TradeOf = tuple[str, str, str]
# Part of the key. After a lost journal a bar may be decided differently; a close must not get the key of an earlier
# open.
FIRST_LEG: Final[Mapping[Action, str]] = {"open": "order", "close": "close", "cancel": "cancel"}
# a close that rests: its request is a reduce-only limit order
TARGET_LEG: Final = "target"
# trigger of an entry that a person's assistant proposes; it always waits for a person
PROPOSED: Final = "proposal:"

INTENT_MOVES: Final[Mapping[str, frozenset[str]]] = {
    # accepted from opened or planned: the order exists under our key, though this run did not send it (another host, a
    # lost file).
    "opened": frozenset({"planned", "sending", "accepted", "rejected", "expired", "void"}),
    "planned": frozenset({"sending", "accepted", "rejected", "expired", "void"}),
    "sending": frozenset({"accepted", "rejected", "expired", "void", "quarantined"}),
    # by a person
    "quarantined": frozenset({"accepted", "rejected", "expired", "void"}),
    "accepted": frozenset(),
    "rejected": frozenset(),
    "expired": frozenset(),
    "void": frozenset(),
}
FINAL: Final = frozenset(state for state, moves in INTENT_MOVES.items() if not moves)
# an order may exist that we have not seen
IN_DOUBT: Final = frozenset({"sending", "quarantined"})

# owner of repair intents; no strategy can have this name
RUNTIME: Final = "@runtime"

# no name, market or trigger contains it, so no two decisions give the same text
_SEPARATOR: Final = "\x1f"


def intent_key(*, address: str, epoch: int, strategy: str, market: str, trigger: str, ordinal: int, leg: str) -> str:
    """The id of a decision, and its Idempotency-Key: base32(SHA-256(...))[:32], the same on every host and after every
    crash.

    `trigger` is the cause ("bar:1748736060000", "event:evt_..."), `ordinal` counts the intents of one cause, `leg`
    tells apart the requests of one intent. Keys are scoped to the account, so nothing in them need be secret.
    """
    parts = (address, str(epoch), strategy, market, trigger, str(ordinal), leg)
    text = _SEPARATOR.join(parts)
    assert text.count(_SEPARATOR) == len(parts) - 1
    return _base32(int.from_bytes(hashlib.sha256(text.encode()).digest()[:20]))


def _base32(bits: int) -> str:
    """160 bits as 32 letters.

    Spreads the bits to five a byte, in five steps: base64.b32encode takes four times as long.
    """
    bits = (bits & _LOW_80) | (bits >> 80) << 128
    bits = (bits & _LOW_40) | (bits & _HIGH_40) << 24
    bits = (bits & _LOW_20) | (bits & _HIGH_20) << 12
    bits = (bits & _LOW_10) | (bits & _HIGH_10) << 6
    bits = (bits & _LOW_5) | (bits & _HIGH_5) << 3
    return bits.to_bytes(32).translate(_LETTERS).decode()


def _lanes(ones: int, width: int, shift: int) -> int:
    """A mask of 256 bits: in each lane of `width` bits, `ones` ones from bit `shift` on."""
    return sum(((1 << ones) - 1) << lane + shift for lane in range(0, 256, width))


_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567".ljust(256)
_LOW_80: Final = (1 << 80) - 1
_LOW_40, _HIGH_40 = _lanes(40, 128, 0), _lanes(40, 128, 40)
_LOW_20, _HIGH_20 = _lanes(20, 64, 0), _lanes(20, 64, 20)
_LOW_10, _HIGH_10 = _lanes(10, 32, 0), _lanes(10, 32, 10)
_LOW_5, _HIGH_5 = _lanes(5, 16, 0), _lanes(5, 16, 5)


@dataclass(frozen=True, slots=True)
class CancelOrders:
    """The orders that a Cancel refers to, fixed at the decision."""

    oids: tuple[str, ...]

    def body(self) -> bytes:
        return json.dumps({"oids": self.oids}).encode()


Request = OrderRequest | CloseRequest | CancelOrders


@dataclass_transform(frozen_default=True)
def _record(cls: type[T]) -> type[T]:
    """A slots dataclass that is frozen for the type checker only, because a frozen one takes four times as long to
    build.
    """
    return dataclass(slots=True)(cls)


@_record
class Intent:
    """One row of the journal. `body` is frozen with it: a new price is a new decision."""

    id: str
    strategy: str
    market: str
    action: Action
    path: Path
    trigger: str
    ordinal: int
    leg: str
    epoch: int
    body: bytes
    not_after_ms: int
    opened_ms: int
    # the intent's part of the strategy's budget
    notional_usd: Decimal = Decimal(0)
    state: State = "opened"
    attempts: int = 0
    confirm_token: str | None = field(default=None, repr=False)
    token_expires_ms: int | None = None
    trade_id: str | None = None
    code: str | None = None
    message: str | None = None
    # The targets of an entry that become limit orders after its fill, as JSON.
    targets: str | None = None
    # the parsed `body`, if this run made it
    request: Request | None = field(default=None, repr=False, compare=False)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.body).hexdigest()

    @property
    def fence_ms(self) -> int:
        """After this instant the service refuses every copy of the request that is still on its way."""
        return self.not_after_ms if self.token_expires_ms is None else self.token_expires_ms

    @property
    def is_whole(self) -> bool:
        """True for a close of a whole position."""
        request = self.close()
        return request.fraction == 1 or (
            request.fraction is None and request.size is None and request.usd_amount is None
        )

    @property
    def is_target(self) -> bool:
        return self.leg == TARGET_LEG

    @property
    def is_proposed(self) -> bool:
        """True for an entry that an assistant has proposed, not the strategy itself."""
        return self.trigger.startswith(PROPOSED)

    def order(self) -> OrderRequest:
        assert self.action == "open" or self.is_target
        if isinstance(self.request, OrderRequest):
            return self.request
        return OrderRequest.from_wire(_parsed(self.body))

    def close(self) -> CloseRequest:
        assert self.action == "close"
        if self.is_target:
            return CloseRequest(size=self.order().size)
        if isinstance(self.request, CloseRequest):
            return self.request
        return CloseRequest.from_wire(_parsed(self.body))

    def cancel(self) -> CancelOrders:
        assert self.action == "cancel"
        if isinstance(self.request, CancelOrders):
            return self.request
        return CancelOrders(tuple(map(str, _parsed(self.body)["oids"])))


def moved(
    i: Intent,
    state: State,
    *,
    attempts: int | None = None,
    token: str | None = None,
    token_expires_ms: int | None = None,
    trade_id: str | None = None,
    code: str | None = None,
    message: str | None = None,
) -> Intent:
    """The intent after a move. dataclasses.replace would be slower, and an intent moves four times."""
    return Intent(
        i.id,
        i.strategy,
        i.market,
        i.action,
        i.path,
        i.trigger,
        i.ordinal,
        i.leg,
        i.epoch,
        i.body,
        i.not_after_ms,
        i.opened_ms,
        i.notional_usd,
        state,
        i.attempts if attempts is None else attempts,
        i.confirm_token if token is None else token,
        i.token_expires_ms if token_expires_ms is None else token_expires_ms,
        i.trade_id if trade_id is None else trade_id,
        i.code if code is None else code,
        i.message if message is None else message,
        i.targets,
        i.request,
    )


def check_body(intent: Intent, sha256: str) -> Intent:
    """The intent, if its body matches the written checksum; otherwise JournalDamaged."""
    if intent.sha256 != sha256:
        raise JournalDamaged(f"the journal's intent {intent.id} does not match its checksum: the file is damaged")
    return intent


def _parsed(body: bytes) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(body, parse_float=Decimal)
    return parsed
