"""Products and quotients in 64 bits are those of Python's whole numbers, up to the bounds and beyond them."""

from __future__ import annotations

from random import Random

import pytest

pytest.importorskip("numpy")

from bot.research.screen import arithmetic
from bot.research.screen.arithmetic import AMOUNT_MAX, E8, NO_AMOUNT, RATE_MAX, TOO_LARGE

EDGES = (0, 1, 99, E8 - 1, E8, E8 + 1, 300_000_000 * E8, AMOUNT_MAX - 1, AMOUNT_MAX, AMOUNT_MAX + 1, 2**63 - 1)


def amounts(count: int) -> list[tuple[int, int]]:
    chance = Random(1)
    drawn = [(int(10 ** chance.uniform(0, 18)), int(10 ** chance.uniform(0, 18))) for _ in range(count)]
    return drawn + [(a, b) for a in EDGES for b in EDGES]


def test_the_split_products_and_quotients_are_exact() -> None:
    for a, b in amounts(5_000):
        assert arithmetic.split_times(a, b) == arithmetic.plain_times(a, b), (a, b)
        assert arithmetic.times(a, b) == arithmetic.plain_times(a, b), (a, b)
        if b:
            assert arithmetic.split_over(a, b) == arithmetic.plain_over(a, b), (a, b)
            assert arithmetic.over(a, b) == arithmetic.plain_over(a, b), (a, b)


def test_split_funding_is_exact() -> None:
    chance = Random(2)
    for size, px in amounts(3_000):
        rate = chance.choice((1, -1)) * chance.choice((0, 1, chance.randint(0, RATE_MAX), RATE_MAX, RATE_MAX + 1))
        expected = arithmetic.plain_funding(size, px, rate)
        assert arithmetic.split_funding(size, px, rate) == expected, (size, px, rate)
        assert arithmetic.funding_of(size, px, rate) == expected, (size, px, rate)


def test_every_step_of_an_accepted_product_fits_in_64_bits() -> None:
    """The parts of a product at the bound, by Python's own numbers."""
    for a, b in ((AMOUNT_MAX, E8), (E8, AMOUNT_MAX), (3 * 10**8 * E8, 3 * E8), (AMOUNT_MAX, E8 - 1)):
        assert arithmetic.plain_times(a, b) != TOO_LARGE
        high, low = a // E8, a % E8
        parts = (high * b, low * (b // E8), low * (b % E8), high * b + low * (b // E8) + low * (b % E8) // E8)
        assert max(parts) < 2**63
    assert arithmetic.times(AMOUNT_MAX, 2 * E8) == TOO_LARGE
    assert arithmetic.funding_of(AMOUNT_MAX, 2 * E8, 1) == NO_AMOUNT
