"""Requests and answers of the sandbox control, /sandbox/v1. No hosted service has it."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from bot.wire.base import Digits, Flag, Integer, Num, Number, Request, Resource, Text, refuse
from bot.wire.vocabulary import FaultKind

SPEED_MAX = 3600

_Name = Annotated[str, Text(1, 64, r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "1..64 letters, digits, dots, dashes")]


class ClockRequest(Request):
    """Body of PATCH /clock. Speed 0 is a manual clock, 1 real time, more is accelerated."""

    speed: Annotated[Decimal, Number(ge=0, le=SPEED_MAX)]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if 0 < self.speed < 1:
            refuse(("speed",), "must be 0 (manual) or 1..3600", "0, 1..3600")
        return self


class AdvanceRequest(Request):
    """Body of POST /clock/advance: exactly one of the three fields."""

    ms: Annotated[int, Integer(0)] | None = None
    to_ms: Annotated[int, Integer(0)] | None = None
    to_next: Flag | None = None

    @model_validator(mode="after")
    def _has_one_field(self) -> Self:
        if sum(value is not None for value in (self.ms, self.to_ms, self.to_next)) != 1:
            refuse(("ms",), "is required, or toMs or toNext: exactly one of the three", ["ms", "toMs", "toNext"])
        if self.to_next is False:
            refuse(("toNext",), "must be true", [True])
        return self


class PriceRequest(Request):
    """Body of POST /markets/{coin}/price."""

    px: Digits
    oracle_px: Digits | None = None
    bid_px: Digits | None = None
    ask_px: Digits | None = None
    volume: Digits | None = None


class SeedRequest(Request):
    """Body of POST /seed."""

    seed: Annotated[int, Integer(0)]


class FaultRequest(Request):
    """Body of POST /faults."""

    op: Annotated[str, Text(1, 64)]
    kind: FaultKind
    count: Annotated[int, Integer(1)] = 1
    ms: Annotated[int, Integer(0, 600_000)] | None = None


class NameRequest(Request):
    """Body of POST /snapshot, /restore, /fork."""

    name: _Name


class MintKeyRequest(Request):
    """Body of POST /keys: a new owner's key for the embedded account. Null: the only account."""

    nullable: ClassVar[frozenset[str]] = frozenset({"accountId"})

    account_id: Annotated[str, Text(1, 64)] | None = None

    def body(self) -> bytes:
        return self.model_dump_json().encode()


class ClockState(Resource):
    mode: str
    speed: Num
    now: int
    next_deadline_ms: int | None = None


class ClockAdvanced(ClockState):
    """`processed`: price points and deadlines of this advance.

    `last_price_ms`: its newest price, None if there was none.
    """

    processed: int
    last_price_ms: int | None = None


class SeedResult(Resource):
    seed: int


class Fault(Resource):
    id: str
    op: str
    kind: str
    remaining: int
    ms: int | None = None


class FaultsResult(Resource):
    faults: tuple[Fault, ...] = ()


class SnapshotResult(Resource):
    name: str
    digest: str
    at: int


class ForkResult(Resource):
    base_url: str
    name: str
    digest: str


class ControlResetResult(Resource):
    digest: str
    now: int


class DigestResult(Resource):
    digest: str
    events: int
    now: int


class MintKeyResult(Resource):
    """Answer of POST /keys. It is the only answer that contains the key's secret; the service stores no copy."""

    api_key: str = Field(repr=False)
    key_id: str
    account_id: str
    address: str
