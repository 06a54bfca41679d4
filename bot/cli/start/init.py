"""`bot init` and `bot new-strategy`: a project that runs and a strategy that trades, to begin from. Writes files, overwrites none."""

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
  heartbeat_seconds: 300      # no sign of life for so long, and the service acts
  on_miss: flatten

safety:
  require_protection: true    # an entry without a stop is refused
  on_exit: leave              # at a stop: leave, cancel or flatten

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
"""{title}: buy a market that closes above its average; stop and target are part of the order."""

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
"""{kind} against a trading service of the test's own: real orders, play money, a clock that the test moves."""

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
    assert [one["coin"] for one in account["positions"]] == ["BTC"]
    assert "stop_loss" in [one["kind"] for one in account["orders"]]


def test_it_leaves_a_market_alone_that_stands_still(sandbox):
    with sandbox.run("{module}:{kind}", strategies_dir=STRATEGIES, params={{"lookback": 3}}) as daemon:
        for _ in range(6):
            sandbox.price("BTC", 100_000)
            daemon.minutes(1)
    assert sandbox.client().get("/v1/trades").json()["trades"] == []
'''

OWN_NAMES: Final = ("Bracket", "Field", "Open", "Params", "Strategy")  # of the classes that STRATEGY imports

IGNORE: Final = "__pycache__/\n.pytest_cache/\nstate/\n*.key\n"


class Taken(BotError):
    """A file is there already."""

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
    """Make a strategy called NAME and its test, to change into yours."""
    names = _names(name)
    module = names["module"]
    place = Path(os.path.normpath(folder.absolute()))  # `.` and `..` have a name, too.
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
            f"{given!r} is no name for a strategy: letters, digits and -, beginning with a letter, at most 40"
        )
    kind = "".join(word.capitalize() for word in words)
    if kind in OWN_NAMES:
        raise click.UsageError(
            f"{given!r} would be called {kind}, as a class of bot's own that it needs; choose another name"
        )
    return {"module": module, "kind": kind, "name": "-".join(words), "title": " ".join(words).capitalize()}


def _write(home: Path, files: Mapping[Path, str]) -> None:
    """All or none: nothing is overwritten."""
    from bot.cli.common.files import judge_text, write_atomic

    taken = [str(home / name) for name in files if (home / name).exists()]
    if taken:
        raise Taken(f"{', '.join(taken)} {'is' if len(taken) == 1 else 'are'} there already; nothing was written")
    for name, text in files.items():
        judge_text(home / name, text)
    for name, text in files.items():
        try:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BotError(f"{(home / name).parent} cannot be made: {error.strerror}") from None
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
