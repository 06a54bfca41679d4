"""`bot check`, `bot config`, `bot strategies`: commands that read configs and strategies.

They start nothing and call no service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from bot.cli.common.config_text import as_yaml
from bot.cli.common.param_types import Group
from bot.cli.common.shared_options import json_option

if TYPE_CHECKING:
    from bot.config.protections import ProtectionSettings
    from bot.config.references import Outside
    from bot.config.settings import Settings

CHECK = """\b
Examples:
  bot check configs/paper.yaml
  bot check configs/paper.yaml --json
"""

CONFIG = """\b
Examples:
  bot config show configs/paper.yaml
  bot config schema > bot.schema.json
  bot config diff configs/paper.yaml my.yaml
"""

STRATEGIES = """\b
Examples:
  bot strategies
  bot strategies --dir strategies --json
"""


@click.command(epilog=CHECK)
@click.argument("config_file", metavar="CONFIG", type=click.Path(path_type=Path))
@json_option("The result as one JSON object on standard output.")
def check(config_file: Path, *, as_json: bool) -> int:
    """Check CONFIG: every key, each reference to a secret, every strategy and its params.

    Calls each strategy on generated bars, without a service. Exit 4 if something is wrong.
    """
    import json

    from bot.checks.config_check import called, checked_config
    from bot.checks.file_versions import stored_problems
    from bot.errors import ConfigError, Exit

    outside = _outside(config_file)
    try:
        source = checked_config(config_file, outside)
        results = called(source)
        if stored := stored_problems(source.settings.state_dir, embedded=source.settings.account.embedded):
            raise ConfigError("\n".join(stored))
    except ConfigError as error:
        if not as_json:
            raise
        problems = [
            {
                "file": problem.file,
                "line": problem.line,
                "column": problem.column,
                "key": problem.key,
                "message": problem.message,
            }
            for problem in error.problems
        ]
        click.echo(json.dumps({"ok": False, "message": str(error), "problems": problems}))
        return int(Exit.CONFIG)
    settings = source.settings
    timers = {name: result.timers for name, result in results.items()}
    notes = [f"{name}: {result.note}" for name, result in results.items() if result.note is not None]
    handed_over = list(outside.handed_over.values())
    if as_json:
        click.echo(json.dumps({**_as_json(settings, timers, handed_over), "notes": notes}))
        return int(Exit.DONE)
    click.echo(f"{config_file} is valid.")
    for line in _lines(settings, timers, handed_over):
        click.echo(f"  {line}")
    for note in notes:
        click.echo(f"  note        {note}")
    click.echo(f"Next: bot {'systemd' if handed_over else 'run'} {quote(str(config_file))}")
    return int(Exit.DONE)


def _as_json(settings: Settings, timers: Mapping[str, Mapping[str, Any]], handed_over: list[str]) -> dict[str, Any]:
    """The checked config as `bot check --json` prints it."""
    limits = {
        strategy.name: {
            "markets": strategy.markets,
            "budgetUsd": str(strategy.budget_usd),
            "maxLeverage": strategy.max_leverage,
            "netting": strategy.netting,
            "protections": {
                name: protection.model_dump(mode="json") for name, protection in strategy.protections.given()
            },
            "dailyLossUsd": None if strategy.daily_loss_usd is None else str(strategy.daily_loss_usd),
            "timers": timers[strategy.name],
        }
        for strategy in settings.strategies
    }
    return {
        "ok": True,
        "name": settings.name,
        "strategies": [strategy.name for strategy in settings.strategies],
        "limits": limits,
        "stateDir": str(settings.state_dir),
        "handedOver": handed_over,
    }


def _service(settings: Settings) -> str:
    account = settings.account
    if account.followed is not None:
        return f"the embedded service, {account.effect}"
    return "the embedded service, play money" if account.embedded else account.base_url


def _protection_lines(section: ProtectionSettings, title: str) -> Iterator[str]:
    for name, protection in section.given():
        given = protection.model_dump(mode="json", exclude_defaults=True)
        yield f"{title} {name}: {', '.join(f'{key} {value}' for key, value in given.items())}"


def _lines(settings: Settings, timers: Mapping[str, Mapping[str, Any]], handed_over: list[str]) -> Iterator[str]:
    """The checked config for a reader: a line for the service, each strategy, each timer and each place that
    matters.
    """
    yield f"service     {_service(settings)}"
    yield from _protection_lines(settings.protections, "protections")
    for strategy in settings.strategies:
        loss = (
            ""
            if strategy.daily_loss_usd is None
            else f", no entries after a loss of {strategy.daily_loss_usd} USD in a day"
        )
        shares = ", shares its markets" if strategy.netting == "allow" else ""
        yield (
            f"strategy    {strategy.name}: {strategy.use} on {', '.join(strategy.markets)}, {strategy.interval} bars,"
            f" at most {strategy.budget_usd} USD, {strategy.max_leverage}x{loss}{shares}"
        )
        yield from _protection_lines(strategy.protections, "  protected ")
        for name, spec in timers[strategy.name].items():
            yield f"  timer     {name}: {spec if isinstance(spec, str) else f'every {spec} s'}"
    dead_man = settings.dead_man
    yield (
        "dead-man    off"
        if dead_man is None
        else f"dead-man    {dead_man.heartbeat_seconds} s without a heartbeat, then {dead_man.on_miss}"
    )
    yield f"on exit     {settings.safety.on_exit}"
    for name in handed_over:
        yield f"secret      ${{credential:{name}}} is given to the systemd unit only; bot doctor checks its file"
    yield f"files       {settings.state_dir}"


def _outside(config_file: Path) -> Outside:
    """Resolves references, with stand-ins for credentials that only the systemd unit gets."""
    import os

    from bot.config.references import Outside

    return Outside(config_file.absolute().parent, os.environ)


@click.group(cls=Group, epilog=CONFIG)
def config() -> None:
    """Show a config with its defaults, compare two, or print the JSON Schema."""


@config.command(epilog="\b\nExample:\n  bot config show configs/paper.yaml")
@click.argument("config_file", metavar="CONFIG", type=click.Path(path_type=Path))
@json_option("JSON instead of YAML.")
def show(config_file: Path, *, as_json: bool) -> None:
    """Show CONFIG with all defaults and with every secret hidden."""
    import json

    from bot.config import read, redacted

    settings = read(config_file, lookup=_outside(config_file)).settings
    click.echo(json.dumps(redacted(settings), indent=2) + "\n" if as_json else as_yaml(settings), nl=False)


@config.command(epilog="\b\nExample:\n  bot config schema > bot.schema.json")
@click.option("--json", "_as_json", is_flag=True, help="Accepted for uniformity; the output is always JSON.")
def schema(*, _as_json: bool) -> None:
    """Print the JSON Schema of a config, for your editor."""
    import json

    from bot.config import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@config.command(epilog="\b\nExample:\n  bot config diff configs/paper.yaml my.yaml")
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@json_option("The differences as JSON: path, old and new value.")
def diff(first: Path, second: Path, *, as_json: bool) -> None:
    """Compare config A with config B, with all defaults and with every secret hidden."""
    import json

    from bot.config import read
    from bot.config.diff import diff as changes_of

    before, after = (read(file, lookup=_outside(file)).settings for file in (first, second))
    changes = changes_of(before, after)
    if as_json:
        click.echo(json.dumps({"changes": [change._asdict() for change in changes]}))
        return
    for change in changes:
        click.echo(str(change))
    if not changes:
        click.echo("The two configs are equal.")


@click.command(epilog=STRATEGIES)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), default=None, help="Folder to look in  [default: strategies]"
)
@json_option("Data instead of a table.")
def strategies(folder: Path | None, *, as_json: bool) -> int:
    """List the strategies of the folder and of installed packages, with their params.

    A broken one is listed with its error.
    """
    import json

    from bot.errors import Exit
    from bot.runtime.strategy_host.loader import discover

    place = folder if folder is not None else _default_folder()
    if not place.is_dir():
        raise click.UsageError(f"there is no folder {place}; give another with --dir")
    listed = discover(place)
    code = int(Exit.ERROR if any(strategy.error for strategy in listed) else Exit.DONE)
    if as_json:
        rows = [
            {
                "use": strategy.use,
                "origin": strategy.origin,
                "path": None if strategy.path is None else str(strategy.path),
                "summary": strategy.summary,
                "params": dict(strategy.params),
                "error": strategy.error,
            }
            for strategy in listed
        ]
        click.echo(json.dumps({"strategies": rows}))
        return code
    if not listed:
        click.echo(f"No strategy in {place}. A strategy is a file there with a subclass of bot.Strategy.")
    for strategy in listed:
        click.echo(f"{strategy.use}  {strategy.error if strategy.error is not None else strategy.summary}".rstrip())
        for name, param in strategy.params.items():
            click.echo(f"    {name:<16} {_bounds(param):<28} {param.get('description', '')}".rstrip())
    return code


def _default_folder() -> Path:
    from bot.cli.common.files import example

    here = Path("strategies")
    return here if here.is_dir() else example("strategies/trend.py").parent


def _bounds(param: dict[str, object]) -> str:
    default = param.get("default", "required")
    low = param.get("minimum", param.get("exclusiveMinimum"))
    high = param.get("maximum", param.get("exclusiveMaximum"))
    span = (
        f" ({'' if low is None else low}..{'' if high is None else high})"
        if low is not None or high is not None
        else ""
    )
    return f"{'optional' if default is None else default}{span}"
