"""Orders of the scenarios in the wire form, and prices and sizes on the grid of a market. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from typing import Any, Final, Literal

Json = dict[str, Any]
Tif = Literal["Gtc", "Ioc", "Alo"]
TriggerKind = Literal["sl", "tp"]

DIGITS: Final = 5
PRICE_DECIMALS: Final = 6


@dataclass(frozen=True, slots=True)
class ContractMarket:
    """A market in which scenarios trade."""

    name: str
    asset: int
    size_decimals: int

    @property
    def lot(self) -> Decimal:
        return Decimal(1).scaleb(-self.size_decimals)

    def px(self, px: Decimal) -> Decimal:
        """The nearest price of the grid: five significant digits, and at most 6 decimals less those of a size."""
        return px.quantize(self.tick(px), ROUND_HALF_EVEN)

    def tick(self, px: Decimal) -> Decimal:
        """The step of the grid at this price. Whole numbers are always allowed."""
        decimals = min(PRICE_DECIMALS - self.size_decimals, DIGITS - 1 - px.adjusted())
        return Decimal(1).scaleb(-max(decimals, 0))

    def size_of(self, usd: Decimal, px: Decimal) -> Decimal:
        """The smallest size that is worth at least so much at this price."""
        return (usd / px / self.lot).to_integral_value(ROUND_CEILING) * self.lot

    def limit(
        self, *, is_buy: bool, size: Decimal, px: Decimal, tif: Tif = "Gtc", reduces: bool = False, name: str
    ) -> Json:
        """A limit order. `name`: our id of it."""
        return self._order({"limit": {"tif": tif}}, is_buy=is_buy, size=size, px=px, reduces=reduces, name=name)

    def trigger(
        self,
        kind: TriggerKind,
        *,
        is_buy: bool,
        size: Decimal,
        at: Decimal,
        bound: Decimal,
        reduces: bool = True,
        name: str,
    ) -> Json:
        """A stop or target that sends a market order at the mark price `at`. `bound`: its price, on the worse side."""
        wire = {"trigger": {"isMarket": True, "triggerPx": text(self.px(at)), "tpsl": kind}}
        return self._order(wire, is_buy=is_buy, size=size, px=bound, reduces=reduces, name=name)

    def _order(self, kind: Json, *, is_buy: bool, size: Decimal, px: Decimal, reduces: bool, name: str) -> Json:
        order = {"a": self.asset, "b": is_buy, "p": text(self.px(px)), "s": text(size), "r": reduces, "t": kind}
        return {**order, "c": name}


def text(value: Decimal) -> str:
    """A decimal as the wire has it: no exponent, no zeros at the end."""
    plain = f"{value:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain
