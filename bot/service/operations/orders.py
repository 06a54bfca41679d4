"""Operations on orders, positions and guardians: turn requests into commands, and results into bodies.

No trading rules.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Collection, Iterable
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError

from bot.errors import Refusal
from bot.money import e8_of_decimal, format_e8
from bot.service.bodies import account_bodies
from bot.service.bodies.responses import OperationRefused, ServiceAnswer, invalid
from bot.service.operations.executor import Context, OperationExecutor, expired, judged_e8
from bot.service.security.auth import Principal, refuse_blocking, refuse_market
from bot.venue.accounting.limits import BRAKES, beyond_reach
from bot.venue.model.commands import (
    ArmGuardian,
    CancelCoin,
    CancelOrder,
    ClosePosition,
    Command,
    ConfirmPlan,
    DisarmGuardian,
    Heartbeat,
    PlaceOrder,
    StorePlan,
)
from bot.venue.model.state import (
    GuardianSpec,
    LegSpec,
    OrderSpec,
    State,
    VenueAccount,
    VenueGuardian,
    VenueOrder,
    event_id,
    guardian_id,
    oid_text,
)
from bot.venue.orders.exchange_actions import ActionsSent
from bot.venue.orders.open_orders import OrderCanceled, resting_limits, unprotected
from bot.venue.orders.orders import OrderPlaced
from bot.venue.orders.preview_draft import OrderPreview
from bot.venue.orders.suggestion import SizeQuestion, Suggestion, suggest
from bot.venue.protection.brackets import refuse_r
from bot.wire.base import aliases, encode
from bot.wire.errors import FIELDS_SHOWN_MAX, clean, fields_of, message_of, unknown
from bot.wire.guardian_requests import GuardianFields, GuardianRequest
from bot.wire.order_requests import (
    CancelCoinRequest,
    CloseRequest,
    ConfirmRequest,
    LegRequest,
    OrderRequest,
    SuggestRequest,
)
from bot.wire.vocabulary import bare_coin

PLAN_TTL_REAL_MS: Final = 60_000
# largest number in a body; larger than any balance
AMOUNT_MAX: Final = Decimal(10**12)
# actions that block openings
BLOCKING: Final = frozenset({"flatten", "block_opens"})
CLOSE_ONLY_GUARDIANS: Final = frozenset({"trailing_stop", "max_hold", "dead_man_switch"})

ORDER_FIELDS: Final = aliases(OrderRequest)
GUARDIAN_FIELDS: Final = aliases(GuardianFields)

_FINEST: Final = Decimal("0.00000001")
_OID: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_GUARDIAN_ID: Final = re.compile(r"grd_[0-9]{1,20}", re.ASCII)


class OrderOperations(OperationExecutor):
    """Place, plan, confirm, close, cancel; guardians and the heartbeat."""

    # ── Orders ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def place(self, principal: Principal, request: OrderRequest, context: Context) -> ServiceAnswer:
        """POST /v1/orders."""
        spec = order_spec(request, reduce_only=principal.close_only)
        self._check_market(principal, spec.coin)
        for inline in spec.guardians:
            self._check_guarded(principal, inline)
        if request.dry_run:
            return self._plan(principal, request, spec, context)

        def command(now: int) -> Command:
            return PlaceOrder(
                principal.account, spec, principal.key, context.request_id, context.idempotency_key, context.expires_ms
            )

        def answer_body(placed: OrderPlaced, now: int) -> Any:
            body = self.order_result(principal, placed)
            body["warnings"] += _of_guardians(request)
            return body

        return self.decide(principal, context, command, answer_body)

    def _plan(self, principal: Principal, request: OrderRequest, spec: OrderSpec, context: Context) -> ServiceAnswer:
        token = f"cft_{secrets.token_urlsafe(24)}"
        self.machine.catch_up()
        ttl = self.plan_ttl_ms()
        command = StorePlan(principal.account, spec, token_digest(token), ttl, request.max_drift_bps, principal.key)
        preview = self.machine.run(command)
        if isinstance(preview, Refusal):
            return self.refusal(preview, context)
        assert isinstance(preview, OrderPreview)
        plan = account_bodies.plan(preview)
        plan["warnings"] += _of_guardians(request)
        return ServiceAnswer.ok(
            {
                "dryRun": True,
                "orderSubmitted": False,
                "confirmToken": token,
                "expiresAt": self.machine.state.now_ms + ttl,
                "plan": plan,
            }
        )

    def plan_ttl_ms(self) -> int:
        """A plan is valid for a minute of real time, or for a minute of a manual clock."""
        return int(PLAN_TTL_REAL_MS * (self.machine.clock.speed or 1))

    def confirm(self, principal: Principal, request: ConfirmRequest, context: Context) -> ServiceAnswer:
        """POST /v1/orders/confirm."""
        token = token_digest(request.confirm_token)
        plan = self.machine.state.plans.get(token)
        if plan is not None and plan.account != principal.account:
            # The venue responds not_found, so that a token of another account stays secret.
            plan = None
        if plan is not None:
            self._check_market(principal, plan.order.coin)
            for inline in plan.order.guardians:
                self._check_guarded(principal, inline)
        if principal.close_only and plan is not None and not plan.shrinks:
            text = "this key may only shrink positions; the plan opens or grows one"
            return self.refusal(Refusal("forbidden", text, fix={"action": "replan"}), context)

        def command(now: int) -> Command:
            return ConfirmPlan(
                principal.account,
                token,
                principal.key,
                context.request_id,
                context.idempotency_key,
                context.expires_ms,
                reduce_only=principal.close_only,
            )

        return self.decide(principal, context, command, lambda placed, now: self.order_result(principal, placed))

    def close(self, principal: Principal, market: str, request: CloseRequest, context: Context) -> ServiceAnswer:
        """POST /v1/positions/{market}/close."""
        coin = bare_coin(market)
        self._check_market(principal, coin)
        fraction = None if request.fraction is None else _at_least_one(request.fraction, "fraction")
        usd = None if request.usd_amount is None else _at_least_one(request.usd_amount, "usdAmount")
        size = None if request.size is None else judged_e8(request.size)

        def command(now: int) -> Command:
            return ClosePosition(
                principal.account,
                coin,
                fraction=fraction,
                usd=usd,
                size=size,
                slippage_bps=request.slippage_bps,
                source=request.source or "api",
                key=principal.key,
                request_id=context.request_id,
                idempotency_key=context.idempotency_key,
                expires_ms=context.expires_ms,
            )

        return self.decide(principal, context, command, lambda placed, now: self.order_result(principal, placed))

    def order_result(self, principal: Principal, placed: OrderPlaced) -> Any:
        state = self.machine.state
        account = self.account(principal)
        coin = placed.trade.coin
        held = account.positions.get(coin)
        listed = [o for o in account.orders.values() if o.coin == coin and account_bodies.is_listed(o)]
        return {
            "dryRun": False,
            "orderSubmitted": True,
            "trade": account_bodies.trade(account, placed.trade),
            "position": None if held is None else account_bodies.position(state, account, held),
            "orders": [account_bodies.order(state, account, o) for o in listed],
            "guardians": [
                account_bodies.guardian(account, account.guardians[number])
                for number in placed.guardians
                if number in account.guardians
            ],
            "leverage": placed.trade.leverage,
            "leverageClamped": placed.leverage_clamped,
            "protected": _is_protected(state, account, placed, listed),
            "warnings": account_bodies.warnings(placed.warnings),
            "lastEventId": event_id(account.event_seq),
        }

    def open_orders(self, principal: Principal, coin: str | None) -> ServiceAnswer:
        """GET /v1/orders."""
        self.refresh()
        wanted = None if coin is None else self.coin(coin)
        return ServiceAnswer.ok({"orders": account_bodies.orders(self.machine.state, self.account(principal), wanted)})

    def suggest(self, principal: Principal, request: SuggestRequest, context: Context) -> ServiceAnswer:
        """POST /v1/orders/suggest. Reads only."""
        self.refresh()
        question = SizeQuestion(
            coin=bare_coin(request.coin),
            intent=request.intent,
            side=1 if request.side == "long" else -1,
            notional=None if request.notional_usd is None else _at_least_one(request.notional_usd, "notionalUsd"),
            size=None if request.size is None else judged_e8(request.size),
            leverage=request.leverage,
            slippage_bps=request.slippage_bps,
        )
        suggestion = suggest(self.machine.state, self.account(principal), self.key(principal), question)
        if isinstance(suggestion, Refusal):
            return self.refusal(suggestion, context)
        assert isinstance(suggestion, Suggestion)
        return ServiceAnswer.ok(account_bodies.suggestion(suggestion))

    def cancel(self, principal: Principal, oid: str, context: Context) -> ServiceAnswer:
        """DELETE /v1/orders/{oid}."""
        if not _OID.fullmatch(oid):
            return self.refusal(Refusal("not_found", f"no open order {oid[:32]!r}"), context)
        self.machine.catch_up()
        named = next(
            (o.coin for o in self.account(principal).orders.values() if _oid(self.account(principal), o) == oid), ""
        )
        if named:
            self._check_coin(principal, named)
        if principal.close_only and any(_oid(self.account(principal), o) == oid for o in self._protection(principal)):
            text = "this key may cancel only entries; this order protects a position"
            return self.refusal(Refusal("forbidden", text), context)

        def answer_body(canceled: OrderCanceled, now: int) -> Any:
            return {
                "oid": oid,
                "coin": canceled.coin,
                "canceled": True,
                "filledSize": format_e8(canceled.filled),
                "unprotected": canceled.unprotected,
            }

        return self.decide(principal, context, lambda now: CancelOrder(principal.account, oid), answer_body)

    def cancel_coin(self, principal: Principal, request: CancelCoinRequest, context: Context) -> ServiceAnswer:
        """DELETE /v1/orders: all open orders of one market."""
        coin = self.coin(request.coin)
        self._check_coin(principal, coin)
        if principal.close_only:
            return self._cancel_entries(principal, coin, context)
        return self.decide(principal, context, lambda now: CancelCoin(principal.account, coin), _coin_canceled)

    def _cancel_entries(self, principal: Principal, coin: str, context: Context) -> ServiceAnswer:
        """Cancel the entries only, for a key that may only shrink positions."""
        self.machine.catch_up()
        account = self.account(principal)
        orders = tuple(order for order in resting_limits(account) if order.coin == coin)
        oids = [_oid(account, order) for order in orders]
        answers = [self.machine.run(CancelOrder(principal.account, oid)) for oid in oids]
        if account.exchange is not None and answers:
            return self._cancels_sent(principal, coin, orders, answers, context)
        bare = unprotected(self.machine.state, account, coin)
        return ServiceAnswer.ok({"coin": coin, "canceledOids": oids, "unprotected": bare})

    def _cancels_sent(
        self, principal: Principal, coin: str, orders: tuple[VenueOrder, ...], answers: list[Any], context: Context
    ) -> ServiceAnswer:
        """The answer when the exchange has decided all cancels, or the first refusal."""
        refused = next((answer for answer in answers if isinstance(answer, Refusal)), None)
        if refused is not None:
            return self.refusal(refused, context)
        nonces = dict.fromkeys(nonce for answer in answers for nonce in answer.nonces)
        return self._answered_later(principal, context, ActionsSent(tuple(nonces), orders), _coin_canceled)

    @staticmethod
    def _check_market(principal: Principal, market: str) -> None:
        """Refuse an event market for a key without the scope outcomes."""
        refused = refuse_market(principal, market)
        if refused is not None:
            raise OperationRefused(refused)

    def _protection(self, principal: Principal) -> list[VenueOrder]:
        account = self.account(principal)
        entries = {order.number for order in resting_limits(account)}
        return [o for o in account.orders.values() if o.number not in entries]

    # ── Guardians ───────────────────────────────────────────────────────────────────────────────────────────────────

    def guardians(self, principal: Principal) -> ServiceAnswer:
        """GET /v1/guardians."""
        self.refresh()
        return ServiceAnswer.ok({"guardians": account_bodies.guardians(self.account(principal))})

    def arm(
        self, principal: Principal, request: GuardianRequest, context: Context, confirm_token: str | None = None
    ) -> ServiceAnswer:
        """POST /v1/guardians.

        `confirm_token` names the plan of a schedule's order. A schedule without such a plan is not armed.
        """
        if refused := self._refuse_type(principal, request.type):
            return self.refusal(refused, context)
        spec = guardian_spec(request)
        self._check_guarded(principal, spec)

        unused_warnings = _of_template(request.order_template)

        def answer_body(armed: VenueGuardian, now: int) -> Any:
            return account_bodies.guardian(self.account(principal), armed) | (
                {"warnings": unused_warnings} if unused_warnings else {}
            )

        def command(now: int) -> Command | Refusal:
            plan = None if confirm_token is None else token_digest(confirm_token)
            armed = ArmGuardian(principal.account, spec, context.idempotency_key, principal.key, plan)
            return expired(context, now) or armed

        return self.decide(principal, context, command, answer_body)

    @staticmethod
    def _refuse_type(principal: Principal, guardian_type: str) -> Refusal | None:
        """Refuse a type of guardian that a key of trade:close_only may neither arm nor disarm."""
        if not principal.close_only or guardian_type in CLOSE_ONLY_GUARDIANS:
            return None
        text = f"this key may arm only {', '.join(sorted(CLOSE_ONLY_GUARDIANS))}"
        return Refusal("forbidden", text, details={"requiredScope": "trade"})

    def _check_guarded(self, principal: Principal, spec: GuardianSpec) -> None:
        """A guardian may trade only where its key may trade, and may block openings only if its key may open."""
        blocks = spec.type in BRAKES or BLOCKING & {spec.action, spec.on_miss}
        refused = refuse_blocking(principal, is_brake=spec.type in BRAKES) if blocks else None
        if refused is not None:
            raise OperationRefused(refused)
        self._check_reach(principal, spec)

    def _check_reach(self, principal: Principal, spec: GuardianSpec) -> None:
        """Refuse a guardian for a market that the caller may not trade."""
        template = json.loads(spec.order_template) if spec.order_template is not None else {}
        inside = template.get("market") if isinstance(template, dict) else None
        for market in (spec.coin, inside):
            if isinstance(market, str):
                self._check_coin(principal, market)

    def _check_coin(self, principal: Principal, market: str) -> None:
        """Only a caller who may trade a market may cancel orders there, because a canceled stop changes the
        position's risk.
        """
        self._check_market(principal, market)
        coin, key = bare_coin(market), self.key(principal)
        if key is not None and key.allowed_coins is not None and coin not in key.allowed_coins:
            details = {"cap": "allowedCoins", "allowed": list(key.allowed_coins)}
            raise OperationRefused(Refusal("key_limit_exceeded", f"this key may not trade {coin}", details=details))

    def disarm(self, principal: Principal, guardian: str, context: Context) -> ServiceAnswer:
        """DELETE /v1/guardians/{id}.

        A key removes only what it could have armed with the same reach; a latched guardian only the owner.
        """
        self.machine.catch_up()
        account = self.account(principal)
        target = next((g for g in account.guardians.values() if guardian_id(account, g.number) == guardian), None)
        if target is None or not _GUARDIAN_ID.fullmatch(guardian):
            return self.refusal(Refusal("not_found", f"no guardian {guardian[:40]!r}"), context)
        if (target.status == "latched" or target.spec.type == "kill_switch") and not principal.owner:
            text = "only the owner's key may remove a guardian that blocks trading"
            return self.refusal(Refusal("forbidden", text, details={"requiredScope": "owner"}), context)
        self._check_guarded(principal, target.spec)
        key = None if principal.owner else self.key(principal)
        refused = self._refuse_type(principal, target.spec.type)
        if refused is None and key is not None:
            refused = beyond_reach(self.machine.state, key, target)
        if refused is not None:
            return self.refusal(refused, context)

        def answer_body(disarmed: VenueGuardian, now: int) -> Any:
            return {"id": guardian, "type": disarmed.spec.type, "disarmed": True}

        return self.decide(principal, context, lambda now: DisarmGuardian(principal.account, guardian), answer_body)

    def heartbeat(self, principal: Principal) -> ServiceAnswer:
        """POST /v1/heartbeat."""
        now = self.machine.catch_up()
        beaten: tuple[VenueGuardian, ...] = self.machine.run(Heartbeat(principal.account))
        account = self.account(principal)
        listed = [{"id": guardian_id(account, g.number), "nextDeadline": g.deadline_ms} for g in beaten]
        return ServiceAnswer.ok({"guardians": listed, "serverTime": now})


def _coin_canceled(canceled: OrderCanceled, now: int) -> Any:
    return {"coin": canceled.coin, "canceledOids": list(canceled.oids), "unprotected": canceled.unprotected}


# ── Requests as commands of the venue ───────────────────────────────────────────────────────────────────────────────


def order_spec(request: OrderRequest, *, reduce_only: bool = False) -> OrderSpec:
    """An order request in scaled integers."""
    bracket = request.bracket
    stop = bracket.stop_loss if bracket is not None else None
    target = bracket.take_profit if bracket is not None else None
    return OrderSpec(
        coin=bare_coin(request.market),
        side=1 if request.side == "long" else -1,
        usd=None if request.usd_amount is None else _at_least_one(request.usd_amount, "usdAmount"),
        size=None if request.size is None else judged_e8(request.size),
        leverage=request.leverage,
        leverage_mode=request.leverage_mode,
        type=request.type,
        limit_px=None if request.limit_px is None else judged_e8(request.limit_px),
        slippage_bps=request.max_slippage_bps,
        allow_partial=request.allow_partial,
        require_protection=request.require_protection,
        stop=_leg(stop, "bracket.stopLoss"),
        target=_leg(target, "bracket.takeProfit"),
        guardians=tuple(guardian_spec(inline) for inline in request.guardians),
        acknowledge_leverage_change=request.acknowledge_leverage_change,
        source=request.source or "api",
        reduce_only=reduce_only,
    )


def _leg(leg: LegRequest | None, name: str) -> LegSpec | None:
    if leg is None:
        return None
    return LegSpec(
        pct=None if leg.pct is None else _at_least_one(leg.pct, f"{name}.pct"),
        px=None if leg.px is None else judged_e8(leg.px),
        r=None if leg.r is None else _at_least_one(leg.r, f"{name}.r"),
    )


def guardian_spec(request: GuardianFields) -> GuardianSpec:
    template = request.order_template
    return GuardianSpec(
        type=request.type,
        scope=request.scope,
        coin=None if request.market is None else bare_coin(request.market),
        heartbeat_seconds=request.heartbeat_seconds,
        on_miss=request.on_miss,
        seconds=request.seconds,
        trail_pct=None if request.trail_pct is None else _at_least_one(request.trail_pct, "trailPct"),
        trail_r=None if request.trail_r is None else _at_least_one(request.trail_r, "trailR"),
        activate_at_r=None if request.activate_at_r is None else _at_least_one(request.activate_at_r, "activateAtR"),
        max_loss_pct=None
        if request.max_loss_pct_from_day_start is None
        else _at_least_one(request.max_loss_pct_from_day_start, "maxLossPctFromDayStart"),
        action=request.action,
        cron=request.cron,
        order_template=None if template is None else encode(template),
        order=None if template is None else template_spec(template),
        bounded=True,
    )


def template_spec(template: dict[str, Any]) -> OrderSpec:
    """The order of a schedule, checked against the schema of POST /v1/orders. Refused if it does not match. Its default
    source is the service.

    Fields that POST /v1/orders does not have are kept in the text and have no effect."""
    try:
        request = _template_order(template)
    except ValidationError as error:
        fields = [problem | {"field": f"orderTemplate.{problem['field']}"} for problem in fields_of(error)]
        raise OperationRefused(Refusal("invalid_input", message_of(fields), details={"fields": fields})) from None
    if request.dry_run:
        raise OperationRefused(invalid("orderTemplate.dryRun", "must be false: a schedule executes its order", [False]))
    spec = order_spec(request)
    if unmeasured := refuse_r(spec.stop, spec.target, "orderTemplate."):
        raise OperationRefused(unmeasured)
    spec.source = request.source
    return spec


def _template_order(template: dict[str, Any]) -> OrderRequest:
    return OrderRequest.from_wire({name: value for name, value in template.items() if name in ORDER_FIELDS})


def _of_template(template: dict[str, Any] | None) -> list[dict[str, str]]:
    """A warning for each field of a template, its guardians included, that has no effect."""
    if template is None:
        return []
    ignored = _ignored("orderTemplate", (name for name in template if name not in ORDER_FIELDS), ORDER_FIELDS)
    return ignored + _of_guardians(_template_order(template), "orderTemplate.")


def _of_guardians(request: OrderRequest, at: str = "") -> list[dict[str, str]]:
    """A warning for each field of an order's guardians that has no effect."""
    return [
        warning
        for index, inline in enumerate(request.guardians)
        for warning in _ignored(f"{at}guardians.{index}", inline.model_extra or {}, GUARDIAN_FIELDS)
    ]


def _ignored(at: str, names: Iterable[str], known: Collection[str]) -> list[dict[str, str]]:
    return [
        {"code": "unknown_member", "message": f"the service ignores {at}.{name}, which {unknown(name, known)[0]}"}
        for name in map(clean, islice(names, FIELDS_SHOWN_MAX))
    ]


def token_digest(token: str) -> str:
    """The digest of a confirm token. The venue and the log never see the token."""
    return hashlib.sha256(token.encode()).hexdigest()


def exact(value: Decimal, name: str) -> int:
    """A number of a body as the nearest scaled integer (a double like 100 / 3 has 16 digits).

    Refused if it is not a number, or larger than any balance.
    """
    if value > AMOUNT_MAX:
        raise OperationRefused(invalid(name, "is out of range", f"<= {AMOUNT_MAX}"))
    try:
        return e8_of_decimal(value)
    except ValueError:
        value_e8 = e8_of_decimal(value.quantize(_FINEST, ROUND_HALF_EVEN))
    if not value_e8:
        raise OperationRefused(invalid(name, "must be at least 0.00000001", ">= 0.00000001"))
    return value_e8


def _at_least_one(value: Decimal, name: str) -> int:
    """An amount, a fraction or a multiple above zero in scaled integers, at least one unit, for the venue to judge."""
    return exact(max(value, _FINEST), name)


def _oid(account: VenueAccount, order: VenueOrder) -> str:
    return oid_text(account, order.number)


def _is_protected(state: State, account: VenueAccount, placed: OrderPlaced, listed: list[VenueOrder]) -> bool:
    """True if a stop is armed, or this order's first fill will arm one, or there is neither a position nor a resting
    order.
    """
    if unprotected(state, account, placed.trade.coin):
        return False
    return placed.protected or not any(o.number in account.resting and o.trade == placed.trade.id for o in listed)
