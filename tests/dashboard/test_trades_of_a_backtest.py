"""The Trades page shows the journal of a backtest with the figures of the report, by the same names."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

from bot.cli.app import call
from bot.dashboard.pages import trades
from bot.runtime.journal import queries
from bot.runtime.journal.round_trip_log import every_trip
from tests.backtest.report.recomputation import FIGURES, TABLES, Files, shows
from tests.html_tables import tables_of

CONFIG = """\
account: {{base_url: embedded}}
dead_man: off
strategies_dir: {strategies}
strategies:
  - {{name: trend, use: "trend:Trend", markets: [BTC, ETH], interval: 1h, budget_usd: 6000, max_leverage: 3}}
"""
# Named apart, because the report's figures of these count what is open at the end too.
CLOSED_ONLY = {"Closed result", "Closed costs", "Deepest fall"}


def test_a_figure_of_the_same_name_is_the_same_on_the_trades_page(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG.format(strategies=repository / "strategies"))
    span = ("--interval", "1h", "--from", "2024-12-01", "--days", "30", "--store", str(tmp_path / "data"))
    with redirect_stdout(io.StringIO()):
        for market in ("BTC", "ETH"):
            assert call(["data", "gen", market, *span]) == 0
        given = ("--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--journal")
        assert call(["backtest", str(tmp_path / "c.yaml"), *given]) == 0
    (folder,) = (tmp_path / "out").iterdir()
    run = Files(folder)
    assert len(run.done) < len(run.rows), "a position is open at the end"
    with queries.opened(next(folder.rglob("journal.db")).parent) as journal:
        closed = trades.closed(every_trip(journal), queries.owners(journal))
    shown = {figure.name: figure for figure in trades.figures(closed)}
    assert set(shown) - set(FIGURES) == CLOSED_ONLY
    for name in set(shown) & set(FIGURES):
        assert shows(shown[name].shown, FIGURES[name].of(run), FIGURES[name].slack), name
    assert shows(shown["Closed result"].shown, sum(run.nets))
    ((_, *rows),) = tables_of(trades.source_table(closed))
    for cells, values in zip(rows, TABLES["Where the result comes from"](run), strict=True):
        assert all(shows(*pair, 2e-4) for pair in zip(cells, values, strict=True)), (cells, values)
