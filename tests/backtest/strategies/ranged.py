"""A strategy whose params say which values a sweep should try, and which refuses and fails on request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import model_validator

from bot import Bar, Bracket, Field, Intent, Open, Params, Strategy, View


class Ranged(Strategy):
    """Buys every so many bars while it has no position."""

    class Params(Params):
        every: int = Field(4, ge=1, json_schema_extra={"sweep": {"from": 2, "to": 6, "step": 2}})
        usd: float = Field(100, gt=0)

        @model_validator(mode="after")
        def _is_affordable(self) -> Self:
            if self.every == 5 and self.usd > 1_000:
                raise ValueError("not so much every 5 bars")
            return self

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if self.params.usd == 666:
            raise RuntimeError("it fails")
        if bar.at_ms // 60_000 % self.params.every == 0 and view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=self.params.usd, bracket=Bracket(stop_pct=0.2, target_r=1))
