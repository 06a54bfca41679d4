"""The gallery of docs/gallery.md: each template of `bot init` as it comes, over the same candles, with a verdict.

    python -m tests.bench.gallery DATA [--write docs/gallery.md]

DATA is a folder of `bot data import` with BTC, ETH and SOL in bars of 1h. No param is fitted to it. The last 40 % of
the span is the holdout. The deflated Sharpe ratio allows for as many trials as there are strategies (Bailey and Lopez
de Prado, 2014). The range is that over the four orders in which a bar may reach its high and its low.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bot.backtest import run
from bot.backtest.engine.options import PATHS, SessionOptions
from bot.backtest.report.risk_statistics import Moments, moments_of, probabilistic_sharpe
from bot.backtest.report.summary import daily_of
from bot.cli.common.files import example
from bot.cli.start.templates import TEMPLATES, StrategyTemplate, params_of
from bot.research.overfitting import SURE, best_by_luck

HOLDOUT: Final = 0.4
BUDGET_USD: Final = 1_000
INTERVAL: Final = "1h"
HEADS: Final = (
    "Strategy",
    "Trades",
    "Return [% of the budget]",
    "Range of paths",
    "Costs of gross gains",
    "Holdout [%]",
    "Sharpe",
    "Deflated",
    "Verdict",
)


@dataclass(frozen=True)
class Row:
    """The figures of one strategy. Returns are in percent of its budget."""

    name: str
    trades: int
    returned: float
    lowest: float
    highest: float
    cost_share: float | None
    holdout: float
    sharpe: float | None
    moments: Moments | None


def config_of(template: StrategyTemplate, folder: Path) -> Path:
    """The config that `bot init` writes for the template, with another budget."""
    params = {name: value for name, value, _ in params_of(template)}
    strategy = {
        "name": template.name,
        "use": f"{template.module}:{template.kind}",
        "markets": list(template.markets),
        "interval": INTERVAL,
        "budget_usd": BUDGET_USD,
        "params": params,
    }
    place = example(template.source).parent
    config = {"account": {"base_url": "embedded"}, "strategies_dir": str(place), "strategies": [strategy]}
    path = folder / f"{template.name}.yaml"
    path.write_text(json.dumps(config))
    return path


def measured(template: StrategyTemplate, data: Path, folder: Path) -> Row:
    config = config_of(template, folder)
    runs = [run(config, data, out=folder / "runs", options=SessionOptions(path=path)) for path in PATHS]
    whole = runs[0].stored
    course = whole.summary["course"]
    begins = int(course["toMs"] - HOLDOUT * (course["toMs"] - course["fromMs"]))
    later = run(config, data, out=folder / "runs", start=begins)
    costs, figures = whole.summary["costs"], whole.summary["figures"]
    gains = sum(max(0.0, trade["pnl_usd"] + trade["fees_usd"]) for trade in runs[0].trades.iter_rows(named=True))
    paid = float(costs["feesUsd"]) + float(costs["slippageUsd"]) - min(0.0, float(costs["fundingUsd"]))
    returns = [gained(one.stored.summary) for one in runs]
    return Row(
        template.name,
        figures["# Trades"],
        returns[0],
        min(returns),
        max(returns),
        paid / gains if gains else None,
        gained(later.stored.summary),
        figures["Sharpe Ratio"],
        moments_of(daily_of(whole, only_with_prices=True)),
    )


def gained(summary: dict[str, Any]) -> float:
    return 100 * (float(summary["endUsd"]) - float(summary["startUsd"])) / BUDGET_USD


def verdict(row: Row, deflated: float | None) -> str:
    """One sentence made from the figures. Too few trades, or a result that hangs on the order within bars, shows
    nothing.
    """
    if row.trades < 30:
        return "too few trades to tell"
    if row.lowest < 0 < row.highest:
        return "no edge shown: its sign depends on the order of prices within a bar"
    if row.returned <= 0:
        return "no edge shown: it loses"
    if row.highest - row.lowest > row.lowest:
        return "not believable: most of it depends on the order of prices within a bar"
    if row.holdout <= 0:
        return "no edge shown: it loses in the holdout"
    if deflated is None or deflated < SURE:
        return "no edge shown: the best of as many by luck is as good"
    return "an edge in these candles; try it on others"


def table(rows: list[Row]) -> list[str]:
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    for row in rows:
        deflated = None
        if row.moments is not None:
            # The strategies have little in common, so the variance is that of a ratio without skill.
            by_luck = best_by_luck(len(rows), 1 / row.moments.length)
            deflated = probabilistic_sharpe(row.moments, by_luck)
        cells = (
            f"`{row.name}`",
            f"{row.trades:,}",
            f"{row.returned:+.2f}",
            f"{row.lowest:+.2f} to {row.highest:+.2f}",
            "-" if row.cost_share is None else f"{row.cost_share:.0%}",
            f"{row.holdout:+.2f}",
            "-" if row.sharpe is None else f"{row.sharpe:.2f}",
            "-" if deflated is None else f"{deflated:.2f}",
            verdict(row, deflated),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="The figures of the gallery of strategies.")
    parser.add_argument("data", type=Path, help="a folder of bot data import")
    parser.add_argument("--write", type=Path, help="replace the table of this page")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measured(template, given.data, Path(folder))
            for template in TEMPLATES.values()
            if not template.markets[0].startswith("event:")
        ]
    lines = table(rows)
    print("\n".join(lines))
    if given.write is not None:
        before, _, rest = given.write.read_text().partition("<!-- table -->\n")
        after = rest.partition("<!-- end of the table -->")[2]
        text = "\n".join(lines)
        given.write.write_text(f"{before}<!-- table -->\n{text}\n<!-- end of the table -->{after}")


if __name__ == "__main__":
    main()
