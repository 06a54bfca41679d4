"""Guardians: rules that act while no agent is connected.

Defines the fields of each type and its deadline. `guardian_commands` and `guardian_actions` act.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final, NamedTuple

from bot import cron
from bot.errors import Refusal
from bot.venue.model.numbers import E8
from bot.venue.model.state import GuardianSpec, VenueAccount, VenueGuardian, VenuePosition

ALL_TYPES: Final = ("trailing_stop", "max_hold", "account_drawdown", "dead_man_switch", "schedule", "kill_switch")
ACTIONS: Final = ("flatten", "block_opens", "cancel_orders")
SECONDS_MIN: Final = 60
MAX_LOSS_PCT: Final = 100 * E8
TRAIL_PCT_MAX: Final = 50 * E8
TRAIL_R_MAX: Final = 20 * E8


class Shape(NamedTuple):
    """The fields of one type: its scope, required fields, optional fields and defaults."""

    scope: str
    required: tuple[str, ...]
    one_of: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()


SHAPES: Final = {
    "trailing_stop": Shape("position", ("coin",), one_of=("trail_pct", "trail_r"), optional=("activate_at_r",)),
    "dead_man_switch": Shape(
        "account", ("heartbeat_seconds",), optional=("on_miss",), defaults=(("on_miss", "cancel_orders"),)
    ),
    "max_hold": Shape("position", ("coin", "seconds")),
    "account_drawdown": Shape("account", ("max_loss_pct",), optional=("action",), defaults=(("action", "flatten"),)),
    "schedule": Shape("account", ("cron",), one_of=("order", "action"), optional=("order_template",)),
    "kill_switch": Shape("account", (), optional=("action",), defaults=(("action", "cancel_orders"),)),
}
WIRE_NAMES: Final = {
    "coin": "market",
    "heartbeat_seconds": "heartbeatSeconds",
    "on_miss": "onMiss",
    "trail_pct": "trailPct",
    "trail_r": "trailR",
    "activate_at_r": "activateAtR",
    "max_loss_pct": "maxLossPctFromDayStart",
    "order_template": "orderTemplate",
    "order": "orderTemplate",
}


def _invalid(field: str, problem: str) -> Refusal:
    name = WIRE_NAMES.get(field, field)
    return Refusal(
        "invalid_input",
        f"{name}: {problem}",
        details={"fields": [{"field": name, "problem": problem, "allowed": None}]},
    )


def normalise(spec: GuardianSpec) -> GuardianSpec | Refusal:
    """The spec with its scope and defaults filled in, or the refusal of a wrong field."""
    shape = SHAPES.get(spec.type)
    if shape is None:
        return Refusal(
            "invalid_input",
            f"type: {spec.type!r} is not one of {', '.join(ALL_TYPES)}",
            details={"fields": [{"field": "type", "problem": "is no guardian", "allowed": list(ALL_TYPES)}]},
        )
    if spec.scope is not None and spec.scope != shape.scope:
        return _invalid("scope", f"a {spec.type} has scope {shape.scope}")
    allowed = {"type", "scope", "bounded", *shape.required, *shape.one_of, *shape.optional}
    given = {f.name for f in fields(spec) if getattr(spec, f.name) is not None}
    for name in sorted(given - allowed):
        return _invalid(name, f"does not belong to a {spec.type}")
    for name in shape.required:
        if name not in given:
            return _invalid(name, f"is required for a {spec.type}")
    if shape.one_of and len(given & set(shape.one_of)) != 1:
        names = " and ".join(WIRE_NAMES.get(n, n) for n in shape.one_of)
        return _invalid(shape.one_of[0], f"exactly one of {names} is required")
    whole = replace(spec, scope=shape.scope)
    for name, value in shape.defaults:
        if getattr(whole, name) is None:
            setattr(whole, name, value)
    if whole.heartbeat_seconds is not None and not 60 <= whole.heartbeat_seconds <= 86_400:
        return _invalid("heartbeat_seconds", "must be 60 to 86400")
    if whole.trail_pct is not None and not 0 < whole.trail_pct <= TRAIL_PCT_MAX:
        return _invalid("trail_pct", "must be above 0 and at most 50")
    if whole.seconds is not None and whole.seconds < SECONDS_MIN:
        return _invalid("seconds", f"must be at least {SECONDS_MIN}")
    if whole.max_loss_pct is not None and not 0 < whole.max_loss_pct <= MAX_LOSS_PCT:
        return _invalid("max_loss_pct", "must be above 0 and at most 100")
    for name in ("action", "on_miss"):
        if getattr(whole, name) not in (None, *ACTIONS):
            return _invalid(name, f"must be one of {', '.join(ACTIONS)}")
    if whole.cron is not None:
        try:
            cron.parse(whole.cron)
        except cron.BadCron as bad:
            return _invalid("cron", str(bad))
    if whole.order is not None and any(inline.type == "schedule" for inline in whole.order.guardians):
        return _invalid("order", "an order of a schedule arms no further schedule")
    for name in ("trail_r", "activate_at_r"):
        value = getattr(whole, name)
        if value is not None and not 0 < value <= TRAIL_R_MAX:
            return _invalid(name, "must be above 0 and at most 20")
    return whole


def normalise_inline(specs: tuple[GuardianSpec, ...], coin: str) -> tuple[GuardianSpec, ...] | Refusal:
    """Inline guardians of an order: the same fields, in the market of the order."""
    whole: list[GuardianSpec] = []
    for index, spec in enumerate(specs):
        if spec.coin is not None and spec.coin != coin:
            return _inside(_invalid("coin", f"an inline guardian belongs to the order's market {coin}"), index)
        shape = SHAPES.get(spec.type)
        judged = normalise(replace(spec, coin=coin) if shape is not None and shape.scope == "position" else spec)
        if isinstance(judged, Refusal):
            return _inside(judged, index)
        whole.append(judged)
    return tuple(whole)


def _inside(refusal: Refusal, index: int) -> Refusal:
    """The refusal for the guardian at `index` of an order, with the full path of each field."""
    at = f"guardians.{index}."
    named = [{**fault, "field": at + fault["field"]} for fault in (refusal.details or {}).get("fields", ())]
    fix = refusal.fix
    if fix is not None and "action" not in fix:
        fix = {**fix, "field": at + fix["field"]}
    return replace(refusal, message=at + refusal.message, fix=fix, details={**(refusal.details or {}), "fields": named})


def refuse_inline(specs: tuple[GuardianSpec, ...], *, has_r: bool) -> Refusal | None:
    """trailR and activateAtR are multiples of R, which only a stop defines."""
    for index, spec in enumerate(specs):
        if not has_r and (spec.trail_r is not None or spec.activate_at_r is not None):
            return _inside(needs_stop(spec), index)
    return None


def needs_stop(spec: GuardianSpec) -> Refusal:
    field = "trail_r" if spec.trail_r is not None else "activate_at_r"
    return Refusal(
        "invalid_input",
        f"{WIRE_NAMES[field]}: R is undefined without a stop",
        fix={"action": "arm_stop", "field": "bracket.stopLoss"},
        details={"fields": [{"field": WIRE_NAMES[field], "problem": "needs a stop", "allowed": None}]},
    )


# ── Protection ──────────────────────────────────────────────────────────────────────────────────────────────────────


def can_fire(stop_px: int | None, side: int, liquidation_px: int | None) -> bool:
    """True if the price reaches the stop before the liquidation price."""
    return stop_px is not None and (liquidation_px is None or (stop_px - liquidation_px) * side > 0)


def nearest(side: int, *prices: int | None) -> int | None:
    """The first of these prices that a falling position of this side reaches."""
    return max((px for px in prices if px is not None), key=lambda px: px * side, default=None)


def held_trail(account: VenueAccount, coin: str, side: int) -> int | None:
    """The nearest active trailing stop of this market's position."""
    return nearest(side, *[g.stop_px for g in account.guardians.values() if g.spec.coin == coin])


def coming_trail(specs: tuple[GuardianSpec, ...], side: int, entry_px: int, r_px: int | None) -> int | None:
    """The nearest trailing stop that an order's guardians will start at its first fill."""
    trailing = [spec for spec in specs if spec.type == "trailing_stop" and spec.activate_at_r is None]
    return nearest(
        side, *[trail_px(spec, side, entry_px, r_px) for spec in trailing if spec.trail_r is None or r_px is not None]
    )


def held_stop(account: VenueAccount, position: VenuePosition) -> int | None:
    """The nearest stop of a position: of its bracket, or a trailing stop."""
    own = None if position.stop_oid is None else account.orders[position.stop_oid].trigger_px
    return nearest(position.side, own, held_trail(account, position.coin, position.side))


# ── Trailing stops ──────────────────────────────────────────────────────────────────────────────────────────────────


def trail_stop(guardian: VenueGuardian) -> int:
    """The stop behind the extreme: extreme * (1 - s*pct/100) or extreme - s*trailR*R, rounded toward the extreme."""
    assert guardian.extreme is not None
    return trail_px(guardian.spec, guardian.side, guardian.extreme, guardian.r_px)


def trail_px(spec: GuardianSpec, side: int, extreme: int, r_px: int | None) -> int:
    if spec.trail_pct is not None:
        distance = extreme * spec.trail_pct // (100 * E8)
    else:
        assert spec.trail_r is not None
        assert r_px is not None
        distance = r_px * spec.trail_r // E8
    return max(1, extreme - side * distance)


def activation_px(guardian: VenueGuardian, entry_px: int) -> int:
    """Price at which a trailing stop with activateAtR starts: entry + s * activateAtR * R."""
    assert guardian.spec.activate_at_r is not None
    assert guardian.r_px is not None
    return entry_px + guardian.side * (guardian.r_px * guardian.spec.activate_at_r // E8)
