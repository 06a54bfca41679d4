"""`bot fleet`: every daemon of this machine in one table, found by its state directory; pause, resume and kill, each
through the daemon's own control socket.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from bot.cli.common.daemon_client import NotRunning, Place, known_folders, outline
from bot.cli.common.demo_folders import DemoFolder
from bot.cli.common.formatting import print_table, usd
from bot.cli.common.param_types import Group
from bot.cli.common.shared_options import FLATTEN, json_option, yes_option
from bot.cli.operate.credentials import recorded_config
from bot.errors import BotError, Exit
from bot.number_text import ago, duration
from bot.words import did_you_mean, many

F = TypeVar("F", bound=Callable[..., Any])

# time for the answer of one daemon; all are asked at the same time
ANSWER_S: Final = 5.0
ASKED_AT_ONCE: Final = 16
COLUMNS: Final = ("name", "state", "value", "today", "positions", "dead-man", "alerts", "folder")

EPILOG = """\b
Examples:
  bot fleet
  bot fleet list --json
  bot fleet pause --all
  bot fleet kill paper --flatten

\b
A daemon is known by its state directory: the usual places, and any other with a running daemon; --state-dir adds one.
Daemons of another machine: ssh HOST bot fleet. Exit 0: each runs and each of its positions has a stop. 3: one does not
run. 5: one does not answer. 6: a position has no stop.
"""
LIST = "\b\nExamples:\n  bot fleet list\n  bot fleet list --json"
PAUSE = "\b\nExamples:\n  bot fleet pause --all --yes\n  bot fleet pause paper live"
RESUME = "\b\nExample:\n  bot fleet resume paper"
KILL = """\b
Examples:
  bot fleet kill paper --flatten
  bot fleet kill --all --yes

\b
Each account's kill switch cancels its entries and blocks new ones until the owner lifts it (bot kill --lift).
"""


@dataclass(frozen=True, slots=True)
class Member:
    """A daemon and its answer to `/status`; without an answer, `problem` says why and `code` how that counts."""

    place: Place
    name: str
    status: Mapping[str, Any] | None = None
    problem: str = ""
    code: Exit = Exit.DONE

    @property
    def is_running(self) -> bool:
        return self.code is not Exit.NOT_RUNNING

    @property
    def alerts(self) -> str:
        """The daemon's alarms, and the guardians that block entries; "not known" if the daemon has not answered."""
        return "not known" if self.status is None else _alerts(self.status)

    def document(self) -> dict[str, Any]:
        """For --json. Without `status` nothing about the account is known."""
        folder = str(self.place.folder)
        return {"name": self.name, "folder": folder, "problem": self.problem or None, "status": self.status}


def members(folders: Sequence[Path] = ()) -> list[Member]:
    """The daemons of this machine and of `folders`, asked at the same time, by name. A demo that has ended is none."""
    given = [folder.absolute() for folder in folders]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        asked = list(pool.map(_asked, map(Place, dict.fromkeys([*known_folders(), *given]))))
    present = [
        member
        for member in asked
        if member.code is not Exit.NOT_RUNNING or member.place.folder in given or not _is_of_demo(member.place.folder)
    ]
    return sorted(present, key=lambda member: (member.name, str(member.place.folder)))


def _is_of_demo(folder: Path) -> bool:
    return DemoFolder(folder.parent).newest() is not None


def _name_of(folder: Path) -> str:
    """The name in the config that the daemon was last started with, or that of its folder."""
    config = recorded_config(folder)
    with contextlib.suppress(BotError):
        if config is not None:
            return outline(Path(config))[0]
    return folder.name


def _asked(place: Place) -> Member:
    try:
        status = place.ask("GET", "/status", within_s=ANSWER_S)
    except BotError as error:
        exit_code = Exit(error.exit_code)
        return Member(place, _name_of(place.folder), problem=str(error), code=exit_code)
    code = Exit.DONE if status.get("is_safe", True) else Exit.UNSAFE
    return Member(place, status["name"], status, code=code)


STATE_DIRS: Final = click.option(
    "--state-dir",
    "folders",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    multiple=True,
    metavar="DIR",
    help="A daemon in another place. Can be repeated.",
)
DATA: Final = json_option("Data instead of text.")


def some_of_them(command: F) -> F:
    """Add the argument and the options that say which daemons a command acts on, and --yes and --json."""
    for option in (
        DATA,
        yes_option("Do not ask, also on a terminal."),
        click.option("--all", "takes_all", is_flag=True, help="Every daemon that runs."),
        STATE_DIRS,
        click.argument("names", nargs=-1, metavar="[NAME...]"),
    ):
        command = option(command)
    return command


@click.group(cls=Group, epilog=EPILOG, invoke_without_command=True)
@click.pass_context
def fleet(context: click.Context) -> int | None:
    """Show all daemons of this machine; pause, resume or kill some of them."""
    if context.invoked_subcommand is None:
        return _shown((), as_json=False)
    return None


@fleet.command("list", epilog=LIST)
@STATE_DIRS
@DATA
def list_all(folders: tuple[Path, ...], *, as_json: bool) -> int:
    """List the daemons: state, account value, profit today, positions, dead-man, alerts."""
    return _shown(folders, as_json=as_json)


def _shown(folders: Sequence[Path], *, as_json: bool) -> int:
    listed = members(folders)
    code = max((member.code for member in listed), default=Exit.DONE)
    if as_json:
        click.echo(json.dumps({"daemons": [member.document() for member in listed]}))
        return int(code)
    print_table([_row(member) for member in listed], COLUMNS, empty="no daemon has run on this machine yet")
    known = [member.status for member in listed if member.status is not None and "account" in member.status]
    if len(listed) > 1:
        value = sum((Decimal(status["account"]["value_usd"]) for status in known), Decimal(0))
        money = f", {usd(value)} USD, {usd(_today(known), signed=True)} USD today" if known else ""
        missing = len(listed) - len(known)
        rest = f"; {many(missing, 'account')} not known" if missing else ""
        click.echo(f"{many(len(listed), 'daemon')}{money}{rest}")
    for member in listed:
        if member.problem and member.code is not Exit.NOT_RUNNING:
            click.echo(f"{member.name}: {member.problem}", err=True)
    return int(code)


def _today(statuses: Sequence[Mapping[str, Any]]) -> Decimal:
    books = [strategy.get("book") or {} for status in statuses for strategy in status["strategies"]]
    books += [
        other["book"] for status in statuses for other in status.get("other_books", ()) if other["name"] != "@foreign"
    ]
    return sum((Decimal(book.get("day_usd", 0)) for book in books), Decimal(0))


def _row(member: Member) -> dict[str, str]:
    status, folder = member.status, str(member.place.folder)
    if status is None:
        state = "NOT RUNNING" if member.code is Exit.NOT_RUNNING else "NO ANSWER"
        return dict.fromkeys(COLUMNS, "not known") | {"name": member.name, "state": state, "folder": folder}
    row = {"name": member.name, "state": status["state"], "folder": folder, "alerts": _alerts(status)}
    row["dead-man"] = _dead_man(status["heartbeat"])
    if "account" not in status:
        return dict.fromkeys(COLUMNS, "not known") | row
    bare = status["unprotected"]
    positions = f"{status['positions']}, WITHOUT A STOP: {', '.join(bare)}" if bare else str(status["positions"])
    # What is marked old is still the last that is known.
    age = f" ({ago(status['old_s'] * 1000)})" if (status.get("old_s") or 0) > 10 else ""
    money = {"value": usd(status["account"]["value_usd"]) + age, "today": usd(_today([status]), signed=True)}
    return row | money | {"positions": positions}


def _dead_man(beat: Mapping[str, Any] | None) -> str:
    if beat is None:
        return "off"
    left_s = beat["deadline_s"]
    if left_s is None:
        return "NOT ARMED"
    return duration(left_s) if left_s >= 0 else f"MAY HAVE ACTED {duration(-left_s)} ago"


def _alerts(status: Mapping[str, Any]) -> str:
    alarms = [alarm["alarm"].replace("_", " ") for alarm in status.get("alarms", ())]
    blocked = [f"{guard['type'].replace('_', ' ')} blocks entries" for guard in status.get("blocked_by", ())]
    return ", ".join([*alarms, *blocked]) or "none"


@fleet.command(epilog=PAUSE)
@some_of_them
def pause(names: tuple[str, ...], folders: tuple[Path, ...], *, takes_all: bool, yes: bool, as_json: bool) -> int:
    """Stop new entries of every strategy of these daemons. Exits, stops and guardians continue."""
    chosen = _chosen(names, folders, takes_all=takes_all)
    return _switch("/pause", "This stops new entries of", chosen, yes=yes, as_json=as_json)


@fleet.command(epilog=RESUME)
@some_of_them
def resume(names: tuple[str, ...], folders: tuple[Path, ...], *, takes_all: bool, yes: bool, as_json: bool) -> int:
    """Allow entries of these daemons again. It confirms that you have checked what waits for a person."""
    chosen = _chosen(names, folders, takes_all=takes_all)
    return _switch("/resume", "This allows entries again of", chosen, yes=yes, as_json=as_json)


@fleet.command(epilog=KILL)
@some_of_them
@FLATTEN
def kill(
    names: tuple[str, ...], folders: tuple[Path, ...], *, takes_all: bool, flatten: bool, yes: bool, as_json: bool
) -> int:
    """Activate the kill switch of the accounts of these daemons. Each is told, even if another one fails."""
    from bot.cli.operate.kill import kill_account
    from bot.client.names import run_unheld

    chosen = _chosen(names, folders, takes_all=takes_all)
    then = "and closes every position of" if flatten else "of"
    _ask_first(f"This cancels all entries, blocks new ones {then}", chosen, yes=yes)

    def killed(member: Member) -> str:
        answer = run_unheld(kill_account(member.place, flatten=flatten))
        left = [position["symbol"] for position in answer["positions"]] if flatten else []
        if left:
            raise BotError(f"killed; still open: {', '.join(left)}")
        return "killed, every position closed" if flatten else "killed"

    return _each(chosen, killed, as_json=as_json)


def _chosen(names: Sequence[str], folders: Sequence[Path], *, takes_all: bool) -> list[Member]:
    """The daemons that are meant: by name or state directory, or all that run. UsageError if a name means none, or
    several.
    """
    if bool(names) == takes_all:
        raise click.UsageError("name the daemons, or give --all" if not names else "give names or --all, not both")
    listed = members(folders)
    if takes_all:
        running = [member for member in listed if member.code is not Exit.NOT_RUNNING]
        if not running:
            raise NotRunning("no daemon runs on this machine")
        return running
    chosen: dict[Path, Member] = {}
    for name in names:
        meant = [member for member in listed if name == member.name or Path(name).absolute() == member.place.folder]
        if not meant:
            known = [member.name for member in listed]
            there_are = f"; there are {', '.join(known) or 'none'}"
            raise click.UsageError(f"no daemon {name}{did_you_mean(name, known) or there_are}")
        if len(meant) > 1:
            places = ", ".join(str(member.place.folder) for member in meant)
            raise click.UsageError(f"several daemons are called {name}: {places}; write the folder of the one")
        chosen[meant[0].place.folder] = meant[0]
    return list(chosen.values())


def _ask_first(what: str, chosen: Sequence[Member], *, yes: bool) -> None:
    if yes or sys.stdin is None or not sys.stdin.isatty():
        return
    try:
        if click.confirm(f"{what} {', '.join(member.name for member in chosen)}. Do it?", err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise click.ClickException("nothing was sent; --yes does not ask")


def _switch(path: str, what: str, chosen: Sequence[Member], *, yes: bool, as_json: bool) -> int:
    _ask_first(what, chosen, yes=yes)

    def switched(member: Member) -> str:
        answer = member.place.ask("POST", path, {})
        forgotten = f"; NOT SAVED: {answer['forgotten']}" if answer.get("forgotten") else ""
        resting = f"; resting entries can still fill: {', '.join(answer['resting'])}" if answer.get("resting") else ""
        return f"{answer['state']}{forgotten}{resting}"

    return _each(chosen, switched, as_json=as_json)


def _each(chosen: Sequence[Member], act: Callable[[Member], str], *, as_json: bool) -> int:
    """Act on each daemon, whatever became of the others. The highest exit code of them."""
    code, results = Exit.DONE, []
    for member in chosen:
        try:
            said, problem = act(member), None
        except BotError as error:
            said, problem = None, str(error)
            code = max(code, Exit(error.exit_code))
        results.append({"name": member.name, "folder": str(member.place.folder), "done": said, "problem": problem})
        if not as_json:
            click.echo(f"{member.name}: {said or problem}", err=problem is not None)
    if as_json:
        click.echo(json.dumps({"daemons": results}))
    return int(code)
