"""Splits sizes and amounts among the strategies that share a position. Pure functions; exact, and sums are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from bot.money import E8
from bot.runtime.model.shares import FOREIGN, Share

Weights = Sequence[tuple[str, int]]


def takes_of(held: Mapping[str, Share], taker: str | None, size: int, step: int) -> list[tuple[str, int]]:
    """How much a close of `size` takes from each share: from the taker's first, then from the others in proportion.

    Size beyond all shares is FOREIGN's. Each part is a whole number of steps, so that each rest can be closed alone.
    """
    parts: dict[str, int] = {}
    own = held.get(taker or "")
    if own is not None:
        parts[own.strategy] = min(own.size_e8, size)
        size -= parts[own.strategy]
    others = [(share.strategy, share.size_e8) for share in held.values() if share is not own]
    others_size = sum(weight for _, weight in others)
    if size >= others_size:
        parts.update(others)
        if size > others_size:
            parts[FOREIGN] = parts.get(FOREIGN, 0) + size - others_size
    elif size:
        parts.update(_split_size(size, others, step))
    return [(name, part) for name, part in parts.items() if part]


def _split_size(size: int, weights: Weights, step: int) -> dict[str, int]:
    """Split a size that is less than the sum of the weights, in proportion.

    Each part is rounded down to whole steps. The rest goes to those that lost most by rounding, up to their weights.
    """
    if len(weights) == 1:
        return {weights[0][0]: size}
    whole = sum(weight for _, weight in weights)
    exact = {name: Fraction(size * weight, whole) for name, weight in weights}
    parts = {name: int(part // step) * step for name, part in exact.items()}
    left = size - sum(parts.values())
    by_loss = sorted(weights, key=lambda weight: parts[weight[0]] - exact[weight[0]])
    # The second time is for a share of an older version that is no whole number of steps.
    for most in (step, size):
        for name, weight in by_loss:
            more = min(most, left, weight - parts[name])
            parts[name] += more
            left -= more
    return parts


def split(amount: int, weights: Weights) -> dict[str, int]:
    """Split an amount in proportion, rounded to UNIT toward zero.

    The last part takes the rest, so the sum is the amount.
    """
    whole = sum(weight for _, weight in weights)
    parts: dict[str, int] = {}
    left = amount
    for name, weight in weights[:-1]:
        part = abs(amount) * weight // whole // E8 * E8
        parts[name] = part if amount >= 0 else -part
        left -= parts[name]
    if weights:
        parts[weights[-1][0]] = left
    return parts


def cost_of(share: Share, part: int) -> int:
    if part >= share.size_e8:
        return share.cost
    cost = abs(share.cost) * part // share.size_e8 // E8 * E8
    return cost if share.cost >= 0 else -cost


def gain_of(share: Share, part: int, px: int) -> int:
    gain = px * min(part, share.size_e8) - cost_of(share, part)
    return gain if share.side == "long" else -gain


def joined(share: Share, other: Share) -> Share:
    return share._replace(size_e8=share.size_e8 + other.size_e8, cost=share.cost + other.cost)
