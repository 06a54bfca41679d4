"""Splits sizes and amounts among the strategies that share a position. Pure functions; exact, and sums are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_DOWN, Decimal

from bot.runtime.model.shares import FOREIGN, NOUGHT, UNIT, Share

Weights = Sequence[tuple[str, Decimal]]


def takes_of(held: Mapping[str, Share], taker: str | None, size: Decimal, step: Decimal) -> list[tuple[str, Decimal]]:
    """How much a close of `size` takes from each share: from the taker's first, then from the others in proportion.

    Size beyond all shares is FOREIGN's. Each part is a whole number of steps, so that each rest can be closed alone.
    """
    parts: dict[str, Decimal] = {}
    own = held.get(taker or "")
    if own is not None:
        parts[own.strategy] = min(own.size, size)
        size -= parts[own.strategy]
    others = [(share.strategy, share.size) for share in held.values() if share is not own]
    others_size = sum((weight for _, weight in others), NOUGHT)
    if size >= others_size:
        parts.update(others)
        if size > others_size:
            parts[FOREIGN] = parts.get(FOREIGN, NOUGHT) + size - others_size
    elif size:
        parts.update(_split_size(size, others, step))
    return [(name, part) for name, part in parts.items() if part]


def _split_size(size: Decimal, weights: Weights, step: Decimal) -> dict[str, Decimal]:
    """Split a size that is less than the sum of the weights, in proportion.

    Each part is rounded down to whole steps. The rest goes to those that lost most by rounding, up to their weights.
    """
    if len(weights) == 1:
        return {weights[0][0]: size}
    whole = sum((weight for _, weight in weights), NOUGHT)
    exact = {name: size * weight / whole for name, weight in weights}
    parts = {name: part // step * step for name, part in exact.items()}
    left = size - sum(parts.values(), NOUGHT)
    by_loss = sorted(weights, key=lambda weight: parts[weight[0]] - exact[weight[0]])
    for most in (step, size):  # The second time is for a share of an older version that is no whole number of steps.
        for name, weight in by_loss:
            more = min(most, left, weight - parts[name])
            parts[name] += more
            left -= more
    return parts


def split(amount: Decimal, weights: Weights) -> dict[str, Decimal]:
    """Split an amount in proportion, rounded to UNIT toward zero. The last part takes the rest, so the sum is the amount."""
    whole = sum((weight for _, weight in weights), NOUGHT)
    parts: dict[str, Decimal] = {}
    left = amount
    for name, weight in weights[:-1]:
        parts[name] = (amount * weight / whole).quantize(UNIT, ROUND_DOWN)
        left -= parts[name]
    if weights:
        parts[weights[-1][0]] = left
    return parts


def cost_of(share: Share, part: Decimal) -> Decimal:
    return share.cost_usd if part >= share.size else (share.cost_usd * part / share.size).quantize(UNIT, ROUND_DOWN)


def gain_of(share: Share, part: Decimal, px: Decimal) -> Decimal:
    gain = px * min(part, share.size) - cost_of(share, part)
    return gain if share.side == "long" else -gain


def joined(one: Share, other: Share) -> Share:
    return one._replace(size=one.size + other.size, cost_usd=one.cost_usd + other.cost_usd)
