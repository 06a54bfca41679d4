"""`bot init` and `bot new-strategy`: write a project, or a strategy with its test, as a starting point. They overwrite no file."""

from __future__ import annotations

import json
import keyword
import os
import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Final

import click

from bot.errors import BotError, Exit

INIT = """\b
Examples:
  bot init my-bot
  cd my-bot && bot check bot.yaml && bot run bot.yaml
"""
NEW = """\b
Examples:
  bot new-strategy breakout
  bot new-strategy mean-revert --dir strategies
"""

CONFIG: Final = """\
# Play money, real time, no key: the service is in the package. `bot config schema` has every key.
name: {project}
account:
  base_url: embedded          # or https://..., with api_key: "${{credential:NAME}}", "${{file:PATH}}" or "${{env:NAME}}"

dead_man:
  heartbeat_seconds: 300      # if the service gets no heartbeat for this long, it closes every position
  on_miss: flatten

safety:
  require_protection: true    # an entry without a stop is refused
  on_exit: leave              # when the daemon stops: leave, cancel or flatten

strategies:
  - name: {name}
    use: "{module}:{kind}"
    markets: [BTC]
    interval: 1m
    budget_usd: 500
    max_leverage: 1
    params: {{lookback: 20, stop_pct: 1.0}}
"""

STRATEGY: Final = '''\
"""{title}: buy when a market closes above its average. Stop and target are part of the order."""

from bot import Bracket, Field, Open, Params, Strategy, sma


class {kind}(Strategy):
    """Long when the close is above the average of the last `lookback` closes; one position a market."""

    class Params(Params):
        lookback: int = Field(20, ge=2, le=500)
        usd: float = Field(100, gt=0)
        stop_pct: float = Field(1.0, gt=0, le=50)

    average = sma("lookback")

    def on_bar(self, view, bar):
        average = self.average[bar.market]
        if average is None or view.position(bar.market):
            return
        if bar.close > average:
            yield Open(bar.market, "long", usd=self.params.usd, bracket=Bracket(stop_pct=self.params.stop_pct, target_r=2))
'''

TEST: Final = '''\
"""Tests {kind} on a trading service that the fixture starts: real orders, play money, a clock that the test moves."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.sandbox(markets=["BTC"])
STRATEGIES = Path(__file__).resolve().parent.parent / "{folder}"


def test_it_buys_above_its_average_and_the_service_keeps_its_stop(sandbox):
    with sandbox.run("{module}:{kind}", strategies_dir=STRATEGIES, params={{"lookback": 3}}) as daemon:
        for price in (100_000, 100_000, 100_000, 101_000):
            sandbox.price("BTC", price)
            daemon.minutes(1)
    account = sandbox.client().get("/v1/account").json()
    assert [position["coin"] for position in account["positions"]] == ["BTC"]
    assert "stop_loss" in [order["kind"] for order in account["orders"]]


def test_it_does_not_trade_while_the_price_does_not_move(sandbox):
    with sandbox.run("{module}:{kind}", strategies_dir=STRATEGIES, params={{"lookback": 3}}) as daemon:
        for _ in range(6):
            sandbox.price("BTC", 100_000)
            daemon.minutes(1)
    assert sandbox.client().get("/v1/trades").json()["trades"] == []
'''

OWN_NAMES: Final = ("Bracket", "Field", "Open", "Params", "Strategy")  # of the classes that STRATEGY imports

IGNORE: Final = "__pycache__/\n.pytest_cache/\nstate/\n*.key\n"


class FileExists(BotError):
    """A file that would be written exists already."""

    exit_code = Exit.USAGE


@click.command(epilog=INIT)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="The files as one JSON object.")
def init(folder: Path, *, as_json: bool) -> int:
    """Make a project in DIR: a config, a strategy and its test."""
    project = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:40] or "bot"
    names = _names("first")
    files = {
        Path("bot.yaml"): CONFIG.format(project=project, **names),
        Path("strategies") / "first.py": STRATEGY.format(**names),
        Path("tests") / "test_first.py": TEST.format(folder="strategies", **names),
        Path(".gitignore"): IGNORE,
    }
    _write(folder, files)
    _tell(
        folder,
        files,
        [f"cd {quote(str(folder))}", "bot check bot.yaml", "python -m pytest tests", "bot run bot.yaml"],
        as_json=as_json,
    )
    return int(Exit.DONE)


@click.command("new-strategy", epilog=NEW)
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("strategies"),
    show_default=True,
    help="Where strategies are.",
)
@click.option("--json", "as_json", is_flag=True, help="The files as one JSON object.")
def new_strategy(name: str, folder: Path, *, as_json: bool) -> int:
    """Make a strategy called NAME and its test, for you to edit."""
    names = _names(name)
    module = names["module"]
    place = Path(os.path.normpath(folder.absolute()))  # `.` and `..` become the folder's name.
    home = place.parent
    files = {
        Path(place.name) / f"{module}.py": STRATEGY.format(**names),
        Path("tests") / f"test_{module}.py": TEST.format(folder=place.name, **names),
    }
    _write(home, files)
    use = f'{{name: {names["name"]}, use: "{module}:{names["kind"]}", markets: [BTC], budget_usd: 500}}'
    _tell(
        home,
        files,
        [f"bot strategies --dir {quote(str(folder))}", f"add to the strategies of your config: - {use}"],
        as_json=as_json,
    )
    return int(Exit.DONE)


def _names(given: str) -> Mapping[str, str]:
    """`mean-revert` -> module mean_revert, class MeanRevert, name mean-revert."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", given).lower(), re.ASCII)
    module = "_".join(words)
    if (
        not module.isidentifier()
        or keyword.iskeyword(module)
        or len(module) > 40
        or re.search(r"[^\w\- ]", given, re.ASCII)
    ):
        raise click.UsageError(
            f"{given!r} is not a valid strategy name: use at most 40 letters, digits and -, and begin with a letter"
        )
    kind = "".join(word.capitalize() for word in words)
    if kind in OWN_NAMES:
        raise click.UsageError(
            f"the class of {given!r} would be called {kind}, which is the name of a class that it imports from bot; choose another name"
        )
    return {"module": module, "kind": kind, "name": "-".join(words), "title": " ".join(words).capitalize()}


def _write(home: Path, files: Mapping[Path, str]) -> None:
    """Write all files, or none if one of them exists."""
    from bot.cli.common.files import judge_text, write_atomic

    taken = [str(home / name) for name in files if (home / name).exists()]
    if taken:
        raise FileExists(f"{', '.join(taken)} already {'exists' if len(taken) == 1 else 'exist'}; nothing was written")
    for name, text in files.items():
        judge_text(home / name, text)
    for name, text in files.items():
        try:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BotError(f"cannot create the folder {(home / name).parent}: {error.strerror}") from None
        write_atomic(home / name, text)


def _tell(home: Path, files: Mapping[Path, str], following: list[str], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"folder": str(home), "files": [str(name) for name in files], "next": following}))
        return
    for name in files:
        click.echo(f"made {home / name}")
    click.echo("Next:")
    for line in following:
        click.echo(f"  {line}")
