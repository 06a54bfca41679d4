"""The sandbox control, /sandbox/v1: clock, prices, digest, seed, faults, snapshots, keys for an embedded daemon.

No hosted service has it. The gateway checks the control token.
"""

from __future__ import annotations

from typing import Any, Final

from bot.errors import Refusal
from bot.money import format_e8, parse_e8
from bot.service.bodies import account_bodies
from bot.service.bodies.responses import OperationRefused, ServiceAnswer, invalid
from bot.service.http.fault_injection import InjectedFaults
from bot.service.http.routes_v1 import Router
from bot.service.operations.executor import parse_scaled
from bot.service.operations.operations import Operations
from bot.service.sandbox.forks import Forks
from bot.service.state_machine.named_snapshots import NamedSnapshot
from bot.service.state_machine.restore import StateRestorer
from bot.venue.model import outcome
from bot.venue.model.commands import CreateKey, RevokeKey
from bot.venue.model.numbers import E8
from bot.venue.model.state import MarketSpec, VenueAccount, VenueKey
from bot.venue.prices import index
from bot.wire import interface
from bot.wire.control import (
    AdvanceRequest,
    ClockRequest,
    FaultRequest,
    MintKeyRequest,
    NameRequest,
    PriceRequest,
    SeedRequest,
)

# name of the account of an embedded daemon
EMBEDDED: Final = "embedded"
EMBEDDED_BALANCE: Final = 10_000 * E8
# name of the keys that this control creates; a new key replaces the one before
MINTED: Final = "embedded daemon"
# the largest price or volume that the database stores, in 1e-8
STORED_MAX: Final = 2**63 - 1
# The longest advance of one request: a year. A longer one would take too long.
ADVANCE_MAX_MS: Final = 400 * 86_400_000


class Control:
    """The operations of the sandbox control."""

    def __init__(self, operations: Operations, restorer: StateRestorer, faults: InjectedFaults, forks: Forks) -> None:
        self._operations = operations
        self._machine = operations.machine
        self._restorer = restorer
        self._faults = faults
        self._forks = forks

    def clock(self) -> ServiceAnswer:
        self._machine.catch_up()
        return ServiceAnswer.ok(self._clock())

    def _clock(self) -> dict[str, Any]:
        clock = self._machine.clock
        return {
            "mode": clock.mode,
            "speed": int(clock.speed) if clock.speed == int(clock.speed) else clock.speed,
            "now": clock.now_ms(),
            "nextDeadlineMs": index.next_deadline_ms(self._machine.state),
        }

    def _refuse_if_live(self) -> None:
        if self._operations.exchange_body is not None:
            text = (
                "this service follows an account at an exchange, whose time, prices and past cannot be set; start one"
                " without --exchange-account for that"
            )
            raise OperationRefused(Refusal("forbidden", text))
        if self._machine.feed.live():
            text = (
                "this service has live prices, so its time and prices cannot be set; start one without --prices for"
                " that"
            )
            raise OperationRefused(Refusal("forbidden", text))

    def set_speed(self, request: ClockRequest) -> ServiceAnswer:
        self._refuse_if_live()
        self._machine.catch_up()
        self._machine.clock.set_speed(float(request.speed))
        self._machine.save_clock()
        self._machine.signals.moved.set()
        return ServiceAnswer.ok(self._clock())

    def advance(self, request: AdvanceRequest) -> ServiceAnswer:
        self._refuse_if_live()
        machine = self._machine
        if machine.clock.speed != 0:
            raise OperationRefused(
                Refusal(
                    "invalid_input",
                    "only a manual clock can be advanced; set its speed to 0 first",
                    fix={"field": "speed", "value": 0},
                )
            )
        now = machine.catch_up()
        before = machine.processed
        machine.last_price_ms = None
        if request.to_next:
            at = machine.next_instant_ms()
            target = now if at is None else max(at, now)
        elif request.to_ms is not None:
            target = request.to_ms
            if target < now:
                raise OperationRefused(invalid("toMs", f"is before the present time ({now})", f">= {now}"))
        else:
            target = now + (request.ms or 0)
        if target - now > ADVANCE_MAX_MS:
            text = "is too far ahead for one request"
            if request.to_next:
                raise OperationRefused(
                    invalid("toNext", f"{text}: {target}", fix={"field": "ms", "value": ADVANCE_MAX_MS})
                )
            field, most = ("ms", ADVANCE_MAX_MS) if request.to_ms is None else ("toMs", now + ADVANCE_MAX_MS)
            raise OperationRefused(invalid(field, text, f"<= {most}"))
        machine.clock.move_to(target)
        machine.catch_up()
        machine.save_clock()
        machine.snapshot_if_due()
        return ServiceAnswer.ok(
            {**self._clock(), "processed": machine.processed - before, "lastPriceMs": machine.last_price_ms}
        )

    def price(self, market: str, request: PriceRequest) -> ServiceAnswer:
        self._refuse_if_live()
        operations, machine = self._operations, self._machine
        coin = operations.coin(market)
        px = _price(request.px, "px")
        listed = machine.state.markets[coin]
        _hold_to_range(listed.spec, px, "px")
        if listed.status == "settled":
            raise OperationRefused(Refusal("market_closed", f"{coin} is settled", details={"opensAt": None}))
        oracle = None if request.oracle_px is None else _price(request.oracle_px, "oraclePx")
        mid: int | None = None
        if (request.bid_px is None) != (request.ask_px is None):
            missing = "bidPx" if request.bid_px is None else "askPx"
            raise OperationRefused(invalid(missing, "is required: send bidPx and askPx together"))
        if request.bid_px is not None and request.ask_px is not None:
            bid, ask = _price(request.bid_px, "bidPx"), _price(request.ask_px, "askPx")
            _hold_to_range(listed.spec, bid, "bidPx")
            _hold_to_range(listed.spec, ask, "askPx")
            if bid > ask:
                raise OperationRefused(invalid("bidPx", "is above askPx"))
            mid = (bid + ask) // 2
        volume = 0 if request.volume is None else parse_scaled(request.volume, "volume", parse_e8)
        if volume > STORED_MAX:
            raise OperationRefused(invalid("volume", "is too large", f"<= {format_e8(STORED_MAX)}"))
        machine.push_price(coin, px, mid=mid, oracle=oracle, volume=volume)
        now = machine.clock.now_ms()
        return ServiceAnswer.ok(account_bodies.market(machine.state, listed, machine.feed.store(coin), now))

    def digest(self) -> ServiceAnswer:
        now = self._machine.catch_up()
        return ServiceAnswer.ok({"digest": self._machine.chain.hex(), "events": self._machine.events, "now": now})

    def mint_key(self, request: MintKeyRequest) -> ServiceAnswer:
        """Create an owner's key for an account. The key created before stops working."""
        operations, machine = self._operations, self._machine
        machine.catch_up()
        account = self._account(request.account_id)
        if account is None and operations.exchange_body is not None:
            link = operations.exchange_body()
            text = (
                f"the link has not read the account {link['address']} yet ({link['reason'] or link['link']}); try again"
            )
            raise OperationRefused(Refusal("service_unavailable", text), None, {"Retry-After": "1"})
        if account is None:
            account, minted = operations.new_account(EMBEDDED, EMBEDDED_BALANCE, key_name=MINTED)
        else:
            old = [k.id for k in self._minted() if k.account == account.id and not k.revoked]
            for key_id in old:
                machine.run(RevokeKey(account.id, key_id))
            key, minted = operations.new_key(account.id, MINTED)
            created = machine.run(CreateKey(key))
            if isinstance(created, Refusal):
                raise OperationRefused(created)
        body = {"apiKey": minted.secret, "keyId": minted.key_id, "accountId": account.id, "address": account.address}
        return ServiceAnswer.ok(body)

    # ── The whole service ───────────────────────────────────────────────────────────────────────────────────────────

    def seed(self, request: SeedRequest) -> ServiceAnswer:
        self._refuse_if_live()
        self._restorer.seed(request.seed)
        return ServiceAnswer.ok({"seed": request.seed})

    def snapshot(self, request: NameRequest) -> ServiceAnswer:
        return ServiceAnswer.ok(_snapshot_view(self._restorer.keep(request.name)))

    def restore(self, request: NameRequest) -> ServiceAnswer:
        self._refuse_if_live()
        return ServiceAnswer.ok(_snapshot_view(self._restorer.restore(request.name)))

    async def fork(self, request: NameRequest) -> ServiceAnswer:
        self._refuse_if_live()
        snapshot = self._restorer.find(request.name)
        replies = self._restorer.named_snapshots.replies(request.name)
        base_url = await self._forks.add(snapshot, replies, self._machine.clock.speed)
        return ServiceAnswer.ok({"baseUrl": base_url, "name": snapshot.name, "digest": snapshot.chain.hex()})

    async def reset(self) -> ServiceAnswer:
        self._refuse_if_live()
        await self._forks.stop()
        self._faults.clear()
        self._restorer.reset()
        return ServiceAnswer.ok({"digest": self._machine.chain.hex(), "now": self._machine.clock.now_ms()})

    # ── Faults ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def faults(self) -> ServiceAnswer:
        return ServiceAnswer.ok(self._faults.body())

    def add_fault(self, request: FaultRequest) -> ServiceAnswer:
        self._faults.add(request)
        return ServiceAnswer.ok(self._faults.body())

    def clear_faults(self) -> ServiceAnswer:
        self._faults.clear()
        return ServiceAnswer.ok(self._faults.body())

    def _minted(self) -> list[VenueKey]:
        """The keys that this operation created. Keys of owners are told apart by their source, not by their name."""
        return [k for k in self._machine.state.keys.values() if k.name == MINTED and k.source == "sandbox"]

    def _account(self, wanted: str | None) -> VenueAccount | None:
        accounts = self._machine.state.accounts
        # Anybody may use that account name; the first key shows the owner.
        if wanted is None and self._operations.exchange_body is not None:
            return next((account for account in accounts.values() if account.exchange is not None), None)
        if wanted is None:
            return next((accounts[k.account] for k in self._minted() if accounts[k.account].name == EMBEDDED), None)
        if wanted not in accounts:
            raise OperationRefused(Refusal("not_found", f"no account {wanted!r} in this service"))
        return accounts[wanted]


def _snapshot_view(snapshot: NamedSnapshot) -> dict[str, Any]:
    return {"name": snapshot.name, "digest": snapshot.chain.hex(), "at": snapshot.at_ms}


def _price(text: str, name: str) -> int:
    px = parse_scaled(text, name, parse_e8)
    if not 0 < px <= STORED_MAX:
        raise OperationRefused(invalid(name, f"must be above 0 and at most {format_e8(STORED_MAX)}"))
    return px


def _hold_to_range(spec: MarketSpec, px: int, name: str) -> None:
    """Refuse a price of an event market outside 0.001..0.999."""
    if outcome.clamp(spec, px) != px:
        raise OperationRefused(invalid(name, "must be within 0.001..0.999", "0.001..0.999"))


def add_control(
    router: Router, operations: Operations, restorer: StateRestorer, faults: InjectedFaults, forks: Forks
) -> None:
    """Add the routes of the sandbox control."""
    control = Control(operations, restorer, faults, forks)

    serve = router.serve
    serve(interface.CLOCK, control.clock)
    serve(interface.SET_SPEED, control.set_speed)
    serve(interface.ADVANCE, control.advance)
    serve(interface.DIGEST, control.digest)
    serve(interface.MINT_KEY, control.mint_key)
    serve(interface.SET_SEED, control.seed)
    serve(interface.FAULTS, control.faults)
    serve(interface.ADD_FAULT, control.add_fault)
    serve(interface.CLEAR_FAULTS, control.clear_faults)
    serve(interface.SNAPSHOT, control.snapshot)
    serve(interface.RESTORE, control.restore)
    serve(interface.FORK, control.fork)
    serve(interface.RESET_SERVICE, control.reset)
    serve(interface.PUSH_PRICE, control.price)
