"""`bot kill`: stop an account now, at the service itself. Needs no daemon, no strategy and no journal, only an address and a key."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.operate.credentials import _key, _noted
from bot.cli.operate.daemon_client import where

if TYPE_CHECKING:
    from bot.cli.operate.daemon_client import Place
    from bot.client import Client
    from bot.wire.account import KillResult

WITHIN_S: Final = 60.0  # of asking with the same key; after that a person must look
NOT_KNOWN: Final = "it is not known whether the kill switch is active. Try again, and check the account in another way"
WAIT_S_MAX: Final = 5.0
FLAT_WITHIN_S: Final = 15.0  # the service closes by itself, again and again, until all is closed
LOOK_S: Final = 0.5
SAYS_S: Final = 5.0  # for a daemon to say which config it has; a kill does not wait for one that hangs

EPILOG = """\b
Examples:
  bot kill
  bot kill --flatten --yes
  bot kill --flatten --config live.yaml --key '${file:/etc/bot/api-key}'
  bot kill --lift

\b
The service cancels entries and blocks new ones until the account's owner lifts the switch; stops stay. --flatten also closes every position.
--lift removes every kill switch; only the owner's key may do that. On a terminal the command asks first; --yes does not ask.
"""


@click.command(epilog=EPILOG)
@where
@click.option("--flatten", is_flag=True, help="Close every position too.")
@click.option("--lift", is_flag=True, help="Remove the kill switches: the account may open positions again.")
@click.option(
    "--key", "reference", default=None, metavar="REFERENCE",
    help="Where the API key is, if not where the config says: ${file:PATH} or ${env:NAME}; never the key itself.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask, also on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="The service's answer.")
def kill(
    config: Path | None,
    state_dir: Path | None,
    reference: str | None,
    *,
    flatten: bool,
    lift: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Activate the kill switch of the account. Asks the service directly, whether the daemon runs or not."""
    from bot.cli.operate.daemon_client import find
    from bot.client.names import run_unheld

    if flatten and lift:
        raise click.UsageError("--flatten activates the switch and --lift removes it: give one of them")
    place = find(config, state_dir, dead_too=True)
    if lift:
        return run_unheld(_lift(place, reference, as_json=as_json))
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        _ask_first(place, flatten=flatten)
    return run_unheld(_kill(place, reference, flatten=flatten, as_json=as_json))


def _ask_first(place: Place, *, flatten: bool) -> None:
    then = "closes every position" if flatten else "leaves positions open with their stops"
    question = f"This cancels all entries of the account of {place.config or place.folder}, blocks new ones and {then}. Kill it?"
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise click.ClickException("nothing was sent; bot kill --yes does not ask")


async def _lift(place: Place, reference: str | None, *, as_json: bool) -> int:
    from bot.cli.operate.daemon_client import Silent
    from bot.client import Client
    from bot.errors import OutcomeUnknown, TryLater

    found = await _way(place, reference)
    if found is None:
        lifted = place.ask("POST", "/lift")["lifted"]
    else:
        try:
            async with Client(*found) as client:
                lifted = await client.lift_kill_switches()
        except (TryLater, OutcomeUnknown) as error:
            raise Silent(
                f"the service at {found[0]} has not lifted the switch ({error.code}: {error.message}); try again when it answers"
            ) from None
    if as_json:
        click.echo(json.dumps({"lifted": lifted}))
    elif lifted:
        click.echo(f"Lifted: {', '.join(lifted)}. The account may open again.")
    else:
        click.echo("No kill switch is active.")
    return 0


async def _kill(place: Place, reference: str | None, *, flatten: bool, as_json: bool) -> int:
    import secrets

    from bot.client import Client

    key = f"kill-{secrets.token_hex(12)}"
    found = await _way(place, reference)
    if found is None:
        # The daemon alone has a key that works just now; it sends the same call.
        body = await _asked(place, key, flatten=flatten)
        return _tell(body, flatten=flatten, as_json=as_json)
    base_url, api_key = found
    async with Client(base_url, api_key) as client:
        result = await _sent(client, key, flatten=flatten)
        body = result.model_dump(mode="json", by_alias=True)
        if flatten and body["positions"]:
            body["positions"] = await _flat(client)
    return _tell(body, flatten=flatten, as_json=as_json)


async def _way(place: Place, reference: str | None) -> tuple[str, str] | None:
    """Where the service is and with which key; None when the daemon has to be asked. An embedded service gives out one key at a time."""
    from bot.cli.operate.daemon_client import NotRunning, plain_data
    from bot.cli.run.embedded_service import Embedded
    from bot.errors import ConfigError
    from bot.runtime.journal.queries import Closed

    config = place.config or _config_of(place)
    if config is None:
        if place.is_running():
            return None
        raise ConfigError(
            f"the daemon of {place.folder} does not run and its config is not known: say which service with --config CONFIG"
        )
    try:
        section = plain_data(config).get("account")
    except ConfigError:
        if reference is None and place.is_running():
            return None
        raise
    account: dict[str, Any] = section if isinstance(section, dict) else {}
    base_url = account.get("base_url")
    if not isinstance(base_url, str):
        raise ConfigError(f"{config}: account.base_url is required: the address of the service")
    if base_url == "embedded":
        if place.is_running():
            return None
        service = Embedded(place.folder)
        address = service.base_url
        if address is None or not service.is_alive():
            raise NotRunning(
                "the embedded service does not run either, so no price moves and nothing trades; the next `bot run` starts both"
            )
        return address, (await service.mint()).api_key.get_secret_value()
    asked = reference if reference is not None else account.get("api_key")
    try:
        return base_url, _key(config, asked)
    except ConfigError:
        with contextlib.suppress(Closed):  # --key is a way without a daemon that cannot be seen.
            if reference is None and place.is_running():
                return None
        raise


def _config_of(place: Place) -> Path | None:
    """Of a daemon that runs, as it says itself; of one that is dead, or does not answer at once, as its journal has it."""
    from bot.errors import BotError

    try:
        said = place.ask("GET", "/status", within_s=SAYS_S).get("config")
    except BotError:
        said = _noted(place.folder)
        if said is not None:
            click.echo(f"the daemon of {place.folder} does not answer; it ran with {said}", err=True)
    return Path(said) if said is not None and Path(said).is_file() else None


async def _asked(place: Place, key: str, *, flatten: bool) -> dict[str, Any]:
    """The daemon's answer. One that is silent, or whose service is, is asked again with the same key."""
    import asyncio

    from bot.cli.operate.daemon_client import Hung, Silent
    from bot.clock import monotonic_ns

    end_ns = monotonic_ns() + int(WITHIN_S * 1e9)
    said = ""
    while True:
        try:
            result: dict[str, Any] = place.ask("POST", "/kill", {"flatten": flatten, "key": key})["result"]
        except Silent as error:
            if monotonic_ns() > end_ns:
                past = _past(place) if isinstance(error, Hung) else ""
                raise Silent(f"{error}; {NOT_KNOWN}{past}") from None
            said = _said_once(str(error), said)
            await asyncio.sleep(LOOK_S)
        else:
            return result


def _past(place: Place) -> str:
    """The way that needs no daemon, while one that hangs has the only key."""
    from bot.runtime.liveness.instance_lock import holder_pid

    pid = holder_pid(place.folder)
    return "" if pid is None else f"; or end the daemon (kill -9 {pid}), and again: then the service itself is asked"


def _said_once(why: str, before: str) -> str:
    """Say why it goes on asking, when that is not what was said before; what has been said by now."""
    if why != before:
        click.echo(f"no answer yet ({why}); retrying for {WITHIN_S:g} s at most", err=True)
    return why


async def _sent(client: Client, key: str, *, flatten: bool) -> KillResult:
    """The same call with the same key, until it is answered: a kill that was lost on its way back is not thrown twice."""
    import asyncio

    from bot.cli.operate.daemon_client import Silent
    from bot.client.retry import Backoff
    from bot.clock import monotonic_ns
    from bot.errors import OutcomeUnknown, TryLater

    end_ns = monotonic_ns() + int(WITHIN_S * 1e9)
    tries, said = 0, ""
    while True:
        try:
            return await client.kill(flatten=flatten, key=key)
        except (TryLater, OutcomeUnknown) as error:
            tries += 1
            if monotonic_ns() > end_ns:
                raise Silent(
                    f"the service did not answer within {WITHIN_S:g} s ({error.code}: {error.message}); {NOT_KNOWN}"
                ) from None
            said = _said_once(f"{error.code}: {error.message}", said)
            wait_ms = max(getattr(error, "after_ms", 0) or 0, Backoff().wait_ms(tries, 0.5))
            await asyncio.sleep(min(wait_ms / 1000, WAIT_S_MAX))


async def _flat(client: Client) -> list[dict[str, Any]]:
    """What is open still, once the service has had its time."""
    import asyncio

    from bot.clock import monotonic_ns
    from bot.errors import ApiError

    end_ns = monotonic_ns() + int(FLAT_WITHIN_S * 1e9)
    while True:
        try:
            positions = (await client.account()).positions
        except ApiError as error:
            return [{"coin": "?", "side": "", "size": f"unknown ({error.code})"}]
        if not positions or monotonic_ns() > end_ns:
            return [one.model_dump(mode="json", by_alias=True) for one in positions]
        await asyncio.sleep(LOOK_S)


def _tell(body: dict[str, Any], *, flatten: bool, as_json: bool) -> int:
    from bot.errors import Exit

    still_open = flatten and bool(body["positions"])
    if as_json:
        click.echo(json.dumps(body))
        return int(Exit.TIMEOUT if still_open else Exit.DONE)
    guardian = body["guardian"]["id"]
    click.echo(
        f"The kill switch is active ({guardian}): no position can be opened on this account until its owner lifts it."
    )
    click.echo(f"  entries     {len(body['canceledOids'])} canceled")
    for one in body["trades"]:
        click.echo(f"  closed      {one['symbol']} {one['side']} {one['size']} ({one['id']})")
    for one in body["positions"]:
        stop = (
            "" if flatten else ", WITHOUT A STOP ORDER" if one.get("stopPx") is None else f", stop at {one['stopPx']}"
        )
        click.echo(f"  {'STILL OPEN' if flatten else 'stays open':<11} {one['coin']} {one['side']} {one['size']}{stop}")
    if not body["positions"]:
        click.echo("  positions   none is open")
    if still_open:
        click.echo("The service continues to close them; check again: bot status")
    click.echo("To lift it: bot kill --lift, with the owner's key.")
    return int(Exit.TIMEOUT if still_open else Exit.DONE)
