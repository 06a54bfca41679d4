"""`bot init` and `bot new-strategy`: write a project, or a strategy with its test, as a starting point.

They overwrite no file.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from shlex import quote
from typing import Any, Final

import click

from bot.cli.common.param_types import Amount
from bot.cli.common.shared_options import json_option
from bot.cli.operate.systemd_unit import unit_name
from bot.cli.start.templates import (
    TEMPLATES,
    FileExists,
    StrategyTemplate,
    files_of,
    names_of,
    names_of_template,
    params_of,
    write_files,
)
from bot.errors import Exit
from bot.wire.vocabulary import INTERVAL_MS
from bot.words import meant_market

INIT = """\b
Examples:
  bot init my-bot
  bot init my-bot --template pairs --market BTC --market ETH --interval 15m
  cd my-bot && bot check bot.yaml && bot run bot.yaml

\b
On a terminal it asks about each option that you leave out; Enter takes the default.
"""
NEW = """\b
Examples:
  bot new-strategy breakout
  bot new-strategy mean-revert --template mean-reversion --dir strategies
"""

CONFIG: Final = """\
# yaml-language-server: $schema={schema}
# Play money, real time, no key: the service is in the package. Editors complete and check this file by the schema \
that the first line names.
#   bot check {config}                        before the first run and after each change
#   bot config schema > {schema}    after an upgrade of Bracketbot
name: {project}

account:
  base_url: embedded          # or https://..., with api_key: "${{credential:NAME}}", \
"${{file:PATH}}" or "${{env:NAME}}"

dead_man:
  heartbeat_seconds: 300      # if the service gets no heartbeat for this long, it closes every position
  on_miss: flatten

safety:
  require_protection: true    # an entry without a stop is refused
  on_exit: leave              # when the daemon stops: leave, cancel or flatten

proof:
  at: "00:20"                 # each day is compared with the test, and each difference gets one cause: bot proof show

strategies:
  - name: {name}
    use: "{module}:{kind}"{pad}# the class {kind} of strategies/{module}.py: {summary}
    markets: [{markets}]
    interval: {interval:<16}# longer bars trade less and pay fewer fees
    budget_usd: {budget:<14}# most notional in open positions and live orders
    max_leverage: 1
    params:                   # `bot strategies` lists the defaults and the bounds
{params}
"""
UNIT: Final = """\
# The unit that this command installs:
#   bot systemd {config} --user --install
# It has absolute paths. After a move of the folder, or of the environment of Bracketbot, \
make it again with: bot systemd {config} --user
# systemd starts the daemon after a boot, restarts it after a crash, \
and ends it if it hangs (WatchdogSec). Its stop leaves what safety.on_exit says.
# The other lines take rights away from the daemon that it does not need.
{text}"""
CONFIG_FILE: Final = "bot.yaml"
SCHEMA_FILE: Final = "bot.schema.json"
IGNORE: Final = "__pycache__/\n.pytest_cache/\nruns/\nstate/\n*.key\n"
DEFAULT: Final = "trend"
NEW_DEFAULT: Final = "breakout"
BUDGET_USD: Final = Decimal(500)
BUDGET_USD_MAX: Final = Decimal(1_000_000_000)
# Of shorter bars the fees take more than a simple rule can earn.
INTERVAL: Final = "1h"

a_template = click.Choice(list(TEMPLATES))


class BudgetParam(Amount):
    """A budget as a config allows it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        budget = super().convert(value, param, ctx)
        if not 0 < budget <= BUDGET_USD_MAX:
            self.fail(f"{budget} is not a budget: it must be above 0 and at most {BUDGET_USD_MAX}", param, ctx)
        return budget


class Markets(click.ParamType[str]):
    """One market of the embedded service, or several with spaces between them."""

    name = "market"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from bot.service.market_data.instruments import CATALOGUE

        for market in value.split():
            if market not in CATALOGUE:
                near = meant_market(market, CATALOGUE)
                hint = f"did you mean {near}?" if near is not None else f"there are {', '.join(CATALOGUE)}"
                self.fail(f"the embedded service has no market {market}; {hint}", param, ctx)
        return value


@click.command(epilog=INIT)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--template", type=a_template, help=f"The strategy to begin with  [default: {DEFAULT}]")
@click.option(
    "--market",
    "markets",
    type=Markets(),
    multiple=True,
    help="A market of the embedded service. Repeatable  [default: as the template needs]",
)
@click.option(
    "--interval", type=click.Choice(list(INTERVAL_MS)), help=f"Interval of the strategy's bars  [default: {INTERVAL}]"
)
@click.option("--budget-usd", type=BudgetParam(), help=f"The strategy's budget  [default: {BUDGET_USD}]")
@json_option("The files as one JSON object; asks nothing.")
def init(
    folder: Path,
    *,
    template: str | None,
    markets: Sequence[str],
    interval: str | None,
    budget_usd: Decimal | None,
    as_json: bool,
) -> int:
    """Make a project in DIR: a config with its schema, a strategy with its test, and a systemd unit."""
    asks = not as_json and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    project = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:40] or "bot"
    unit = Path(unit_name(project))
    # The check comes before the questions.
    for name in (CONFIG_FILE, unit):
        if (folder / name).exists():
            raise FileExists(f"{folder / name} already exists; nothing was written")
    if asks and template is None:
        for known in TEMPLATES.values():
            click.echo(f"  {known.name:<16}{known.summary}")
    chosen = TEMPLATES[template or _asked("Strategy", a_template, DEFAULT, asks=asks)]
    given = " ".join(markets) or _asked(
        "Markets, with spaces between them", Markets(), " ".join(chosen.markets), asks=asks
    )
    listed = _checked_markets(chosen, list(dict.fromkeys(given.split())))
    bars = interval or _asked("Interval of its bars", click.Choice(list(INTERVAL_MS)), INTERVAL, asks=asks)
    budget = budget_usd if budget_usd is not None else _asked("Budget in USD", BudgetParam(), BUDGET_USD, asks=asks)
    files = {
        Path(CONFIG_FILE): _config_text(folder / CONFIG_FILE, project, chosen, listed, bars, budget),
        **files_of(chosen, names_of_template(chosen)),
        Path(SCHEMA_FILE): _schema_text(),
        Path(".gitignore"): IGNORE,
    }
    write_files(folder, files)
    write_files(folder, {unit: _unit_text(folder / CONFIG_FILE)})
    _print_result(folder, [*files, unit], _next(folder), as_json=as_json)
    return int(Exit.DONE)


@click.command("new-strategy", epilog=NEW)
@click.argument("name")
@click.option("--template", type=a_template, default=NEW_DEFAULT, show_default=True, help="The strategy to begin with.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("strategies"),
    show_default=True,
    help="Where strategies are.",
)
@json_option("The files as one JSON object.")
def new_strategy(name: str, template: str, folder: Path, *, as_json: bool) -> int:
    """Make a strategy called NAME and its test, for you to edit."""
    chosen = TEMPLATES[template]
    names = names_of(name, chosen)
    # `.` and `..` become the folder's name.
    place = Path(os.path.normpath(folder.absolute()))
    files = files_of(chosen, names, folder=place.name)
    write_files(place.parent, files)
    markets = ", ".join(chosen.markets)
    use = f'{{name: {names.name}, use: "{names.module}:{names.kind}", markets: [{markets}], budget_usd: 500}}'
    following = [f"bot strategies --dir {quote(str(folder))}", f"add to the strategies of your config: - {use}"]
    _print_result(place.parent, list(files), following, as_json=as_json)
    return int(Exit.DONE)


def _asked(question: str, kind: click.ParamType[Any], default: Any, *, asks: bool) -> Any:
    return click.prompt(question, type=kind, default=default) if asks else default


def _checked_markets(template: StrategyTemplate, markets: list[str]) -> list[str]:
    """UsageError if the template cannot trade these markets."""
    is_event = [market.startswith("event:") for market in markets]
    if template.name == "rotation" and len(markets) < 2:
        raise click.UsageError("the template rotation chooses among at least two markets: --market BTC --market ETH")
    if template.name == "pairs" and len(markets) != 2:
        raise click.UsageError(f"the template pairs trades two markets, not {len(markets)}: --market BTC --market ETH")
    if any(is_event) != all(is_event) or any(is_event) != (template.name == "event-market"):
        wanted = "event markets only, like event:RATE-CUT" if template.name == "event-market" else "no event markets"
        raise click.UsageError(f"the template {template.name} trades {wanted}; given: {', '.join(markets)}")
    return markets


def _config_text(
    config: Path, project: str, template: StrategyTemplate, markets: Sequence[str], interval: str, budget: Decimal
) -> str:
    from bot.config import read_text

    names = names_of_template(template)
    rows = [(f"{name}: {json.dumps(default)}", said) for name, default, said in params_of(template)]
    text = CONFIG.format(
        schema=SCHEMA_FILE,
        config=CONFIG_FILE,
        project=project,
        name=names.name,
        module=names.module,
        kind=names.kind,
        pad=" " * max(2, 19 - len(f"{names.module}:{names.kind}")),
        summary=template.summary,
        markets=", ".join(f'"{market}"' if ":" in market else market for market in markets),
        interval=interval,
        budget=f"{budget:f}",
        params="\n".join(f"      {row:<20}# {said}" if said else f"      {row}" for row, said in rows),
    )
    # ConfigError for a value that the options accept and a config refuses
    read_text(text, config)
    return text


def _schema_text() -> str:
    from bot.config import json_schema

    return json.dumps(json_schema(), indent=2) + "\n"


def _unit_text(config: Path) -> str:
    """The user unit of the project's config, with comments."""
    from bot.cli.operate.systemd_unit import unit_of

    return UNIT.format(config=CONFIG_FILE, text=unit_of(config, is_user=True).text)


def _next(folder: Path) -> list[str]:
    """The commands that follow `bot init`."""
    import importlib.util

    from bot.extras import install_package
    from bot.operating_system import IS_LINUX

    python = quote(sys.executable)
    install = [] if importlib.util.find_spec("pytest") else [install_package("pytest")]
    return [
        f"cd {quote(str(folder))}",
        f"bot check {CONFIG_FILE}",
        *install,
        f"{python} -m pytest tests",
        f"bot run {CONFIG_FILE}",
        f"bot systemd {CONFIG_FILE} --user --install" if IS_LINUX else f"bot launchd {CONFIG_FILE} --install",
    ]


def _print_result(home: Path, files: Sequence[Path], following: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"folder": str(home), "files": [str(name) for name in files], "next": list(following)}))
        return
    for name in files:
        click.echo(f"made {home / name}")
    click.echo("Next:")
    for line in following:
        click.echo(f"  {line}")
