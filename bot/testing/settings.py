"""The config of a test's strategy, made from arguments and checked as a config file is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from bot.config import Settings

NAME: Final = "tested"


def strategy_entry(
    use: str,
    *,
    markets: Sequence[str],
    interval: str,
    params: Mapping[str, Any],
    budget_usd: float,
    max_leverage: int,
    informative: Sequence[str] = (),
) -> dict[str, Any]:
    """The strategy's item in the config's list `strategies`."""
    return {
        "name": NAME,
        "use": use,
        "markets": list(markets),
        "informative": list(informative),
        "interval": interval,
        "params": dict(params),
        "budget_usd": Decimal(repr(budget_usd)),
        "max_leverage": max_leverage,
    }


def checked_settings(data: Mapping[str, Any], *, strategies_dir: str | Path, caller: str) -> Settings:
    """The settings. ValueError begins with `caller` and names each wrong argument."""
    try:
        return Settings.model_validate({"dead_man": "off", **data, "strategies_dir": Path(strategies_dir).absolute()})
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        # A strategy with a problem is left out, and pydantic then also reports that the list is too short.
        shown = [problem for problem in problems if problem["loc"] != ("strategies",)] or problems
        text = "; ".join(f"{_named(problem['loc'])}: {problem['msg']}" for problem in shown)
        raise ValueError(f"{caller}: {text}") from None


def _named(loc: tuple[int | str, ...]) -> str:
    """The argument behind a path of the config: `strategies.0.markets` is `markets`."""
    return ".".join(map(str, loc[2:] if loc[:2] == ("strategies", 0) and loc[2:] else loc))
