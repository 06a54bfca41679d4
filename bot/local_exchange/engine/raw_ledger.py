"""The exchange's own bookkeeping: raw USD and signed sizes of each account.

Money in answers is told from it, not from the venue's ledger.

It is compared with the venue's ledger after each action, so that an error there ends the process instead of cancelling
out later. Every amount has at most six decimals, because a price has at most 6 - szDecimals and a size szDecimals of
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bot.local_exchange.engine.venue_rules import E8, MICRO, VenueAccount, cash_of


@dataclass(slots=True)
class RawAccount:
    """One address in one dex. `sums` explains `usd` by cause."""

    usd: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)

    def add(self, cause: str, amount: int) -> None:
        """Book a deposit, transfer, fee, funding payment, forfeited margin or absorbed loss."""
        self.usd += amount
        self.sums[cause] = self.sums.get(cause, 0) + amount

    def fill(self, coin: str, *, buy: bool, px: int, size: int, fee: int) -> None:
        """Book one execution: a purchase lowers raw USD by price times size, a sale raises it; the fee lowers it."""
        notional, rest = divmod(px * size, E8)
        assert rest == 0 and notional % MICRO == 0, (coin, px, size)
        assert fee % MICRO == 0, fee
        sign = 1 if buy else -1
        self.add("fills", -sign * notional)
        self.add("fees", -fee)
        held = self.sizes.get(coin, 0) + sign * size
        if held:
            self.sizes[coin] = held
        else:
            self.sizes.pop(coin, None)

    def value(self, marks: dict[str, int]) -> int:
        """Raw USD and signed sizes at mark prices."""
        return self.usd + sum(
            size * marks[coin] // E8 if size > 0 else -(-size * marks[coin] // E8) for coin, size in self.sizes.items()
        )

    def check(self, account: VenueAccount) -> None:
        """Assert that the venue's ledger has the same money and the same positions."""
        assert cash_of(account) == self.usd, (account.id, cash_of(account), self.usd, self.sums)
        held = {coin: position.side * position.size for coin, position in account.positions.items()}
        assert held == self.sizes, (account.id, held, self.sizes)
        for position in account.positions.values():
            assert position.margin >= 0, position
