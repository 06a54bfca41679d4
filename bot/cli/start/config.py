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

if TYPE_CHECKING:
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
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object on standard output.")
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
        found = called(source)
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
    timers = {name: one.timers for name, one in found.items()}
    notes = [f"{name}: {one.note}" for name, one in found.items() if one.note is not None]
    handed_over = list(outside.found.values())
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
        one.name: {
            "markets": one.markets,
            "budgetUsd": str(one.budget_usd),
            "maxLeverage": one.max_leverage,
            "netting": one.netting,
            "dailyLossUsd": None if one.daily_loss_usd is None else str(one.daily_loss_usd),
            "timers": timers[one.name],
        }
        for one in settings.strategies
    }
    return {
        "ok": True,
        "name": settings.name,
        "strategies": [one.name for one in settings.strategies],
        "limits": limits,
        "stateDir": str(settings.state_dir),
        "handedOver": handed_over,
    }


def _lines(settings: Settings, timers: Mapping[str, Mapping[str, Any]], handed_over: list[str]) -> Iterator[str]:
    """The checked config for a reader: a line for the service, each strategy, each timer and each place that
    matters.
    """
    yield (
        f"service     {'the embedded service, play money' if settings.account.embedded else settings.account.base_url}"
    )
    for one in settings.strategies:
        loss = "" if one.daily_loss_usd is None else f", no entries after a loss of {one.daily_loss_usd} USD in a day"
        shares = ", shares its markets" if one.netting == "allow" else ""
        yield (
            f"strategy    {one.name}: {one.use} on {', '.join(one.markets)}, {one.interval} bars, at most"
            f" {one.budget_usd} USD, {one.max_leverage}x{loss}{shares}"
        )
        for name, spec in timers[one.name].items():
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
@click.option("--json", "as_json", is_flag=True, help="JSON instead of YAML.")
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
@click.argument("one", metavar="A", type=click.Path(path_type=Path))
@click.argument("other", metavar="B", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The differences as JSON: path, old and new value.")
def diff(one: Path, other: Path, *, as_json: bool) -> None:
    """Compare config A with config B, with all defaults and with every secret hidden."""
    import json

    from bot.config import read
    from bot.config.diff import diff as changes_of

    before, after = (read(file, lookup=_outside(file)).settings for file in (one, other))
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
@click.option("--json", "as_json", is_flag=True, help="Data instead of a table.")
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
    found = discover(place)
    code = int(Exit.ERROR if any(one.error for one in found) else Exit.DONE)
    if as_json:
        rows = [
            {
                "use": one.use,
                "origin": one.origin,
                "path": None if one.path is None else str(one.path),
                "summary": one.summary,
                "params": dict(one.params),
                "error": one.error,
            }
            for one in found
        ]
        click.echo(json.dumps({"strategies": rows}))
        return code
    if not found:
        click.echo(f"No strategy in {place}. A strategy is a file there with a subclass of bot.Strategy.")
    for one in found:
        click.echo(f"{one.use}  {one.error if one.error is not None else one.summary}".rstrip())
        for name, param in one.params.items():
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
