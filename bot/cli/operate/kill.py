"""`bot kill`: activate the account's kill switch at the service.

Needs only an address and a key; no daemon, strategy or journal.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common.daemon_client import where
from bot.cli.common.shared_options import FLATTEN, json_option, yes_option
from bot.cli.operate.credentials import key_of_reference, recorded_config

if TYPE_CHECKING:
    from bot.cli.common.daemon_client import Place
    from bot.cli.run.embedded_service import Embedded
    from bot.client import Client
    from bot.wire.account import KillResult

# The time of retries with the same idempotency key. After that a person must check.
WITHIN_S: Final = 60.0
NOT_KNOWN: Final = "it is not known whether the kill switch is active. Try again, and check the account in another way"
WAIT_S_MAX: Final = 5.0
# the service goes on closing until nothing is open
FLAT_WITHIN_S: Final = 15.0
LOOK_S: Final = 0.5
# time to learn the daemon's config; a kill must not wait for a daemon that hangs
STATUS_S: Final = 5.0

EPILOG = """\b
Examples:
  bot kill
  bot kill --flatten --yes
  bot kill --flatten --config live.yaml --key '${file:/etc/bot/api-key}'
  bot kill --lift

\b
The service cancels all entries and blocks new ones until the account's owner lifts the switch. Stops stay. --flatten
also closes every position. --lift removes every kill switch; only the owner's key may do that. On a terminal the
command asks first; --yes does not ask.
"""


@click.command(epilog=EPILOG)
@where
@FLATTEN
@click.option("--lift", is_flag=True, help="Remove the kill switches: the account may open positions again.")
@click.option(
    "--key",
    "reference",
    default=None,
    metavar="REFERENCE",
    help="Reference to the API key, instead of the config's: ${file:PATH} or ${env:NAME}; never the key itself.",
)
@yes_option("Do not ask, also on a terminal.")
@json_option("The service's answer.")
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
    """Activate the kill switch of the account. Calls the service directly, whether or not the daemon runs."""
    from bot.cli.common.daemon_client import find
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
    question = (
        f"This cancels all entries of the account of {place.config or place.folder}, blocks new ones and {then}."
        " Kill it?"
    )
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise click.ClickException("nothing was sent; bot kill --yes does not ask")


async def _lift(place: Place, reference: str | None, *, as_json: bool) -> int:
    from bot.cli.common.daemon_client import Silent
    from bot.client import Client
    from bot.errors import OutcomeUnknown, TryLater

    address = await _address_and_key(place, reference)
    if address is None:
        lifted = place.ask("POST", "/lift")["lifted"]
    else:
        try:
            async with Client(*address) as client:
                lifted = await client.lift_kill_switches()
        except (TryLater, OutcomeUnknown) as error:
            raise Silent(
                f"the service at {address[0]} did not lift the switch ({error.code}: {error.message}); try again when"
                " it answers"
            ) from None
    if as_json:
        click.echo(json.dumps({"lifted": lifted}))
    elif lifted:
        click.echo(f"Lifted: {', '.join(lifted)}. The account may open positions again.")
    else:
        click.echo("No kill switch is active.")
    return 0


async def _kill(place: Place, reference: str | None, *, flatten: bool, as_json: bool) -> int:
    return _report(await kill_account(place, reference, flatten=flatten), flatten=flatten, as_json=as_json)


async def kill_account(
    place: Place, reference: str | None = None, *, flatten: bool, by: str | None = None
) -> dict[str, Any]:
    """Activate the kill switch, whether or not the daemon runs. Returns the service's answer; for `flatten` with the
    positions left at the end.

    Every emergency path calls this: the command, and the confirmed /kill of a chat.
    """
    import secrets

    from bot.client import Client

    key = f"kill-{secrets.token_hex(12)}"
    address = await _address_and_key(place, reference)
    if address is None:
        # Only the daemon has a key that works now; it sends the same call.
        return await kill_by_daemon(place, key, flatten=flatten, by=by)
    base_url, api_key = address
    async with Client(base_url, api_key) as client:
        result = await _kill_at_service(client, key, flatten=flatten)
        body = result.model_dump(mode="json", by_alias=True)
        if flatten and body["positions"]:
            body["positions"] = await _open_positions(client)
    return body


def check_way(place: Place, reference: str | None = None) -> None:
    """Raise BotError if `kill_account` has no way to the service now: no daemon and no key, or an embedded service
    that does not run.
    """
    _way(place, reference)


async def _address_and_key(place: Place, reference: str | None) -> tuple[str, str] | None:
    """The service's address and a key;

    None if only the running daemon has a key. An embedded service has one valid key at a time.
    """
    way = _way(place, reference)
    if isinstance(way, tuple) or way is None:
        return way
    address = way.base_url
    assert address is not None, "it was just read"
    return address, (await way.mint()).api_key.get_secret_value()


def _way(place: Place, reference: str | None) -> tuple[str, str] | Embedded | None:
    """Address and key of a service, an embedded service that runs without its daemon, or None: the daemon must send
    the call.
    """
    from bot.cli.common.daemon_client import NotRunning, plain_data
    from bot.cli.run.embedded_service import Embedded
    from bot.errors import ConfigError
    from bot.runtime.journal.queries import Closed

    config = place.config or _config_of(place)
    if config is None:
        if place.is_running():
            return None
        raise ConfigError(
            f"the daemon of {place.folder} does not run and its config is not known: name the config with --config"
            " CONFIG"
        )
    try:
        section = plain_data(config).get("account")
    except ConfigError:
        if reference is None and place.is_running():
            return None
        raise
    account: dict[str, Any] = section if isinstance(section, dict) else {}
    # The embedded service follows an account at an exchange.
    base_url = account.get("base_url", None if account.get("exchange") is None else "embedded")
    if not isinstance(base_url, str):
        raise ConfigError(f"{config}: account.base_url is required: the address of the service")
    if base_url == "embedded":
        if place.is_running():
            return None
        service = Embedded(place.folder)
        if service.base_url is None or not service.is_alive():
            raise NotRunning(
                "neither the daemon nor its embedded service runs, so no price moves and nothing trades; the next `bot"
                " run` starts both"
            )
        return service
    chosen = reference if reference is not None else account.get("api_key")
    try:
        return base_url, key_of_reference(config, chosen)
    except ConfigError:
        # A kill with --key needs no daemon, so the daemon need not be visible.
        with contextlib.suppress(Closed):
            if reference is None and place.is_running():
                return None
        raise


def _config_of(place: Place) -> Path | None:
    """The daemon's config: from the daemon, or from its journal if the daemon is dead or does not answer within
    STATUS_S.
    """
    from bot.errors import BotError

    try:
        config = place.ask("GET", "/status", within_s=STATUS_S).get("config")
    except BotError:
        config = recorded_config(place.folder)
        if config is not None:
            click.echo(f"the daemon of {place.folder} does not answer; its last config was {config}", err=True)
    return Path(config) if config is not None and Path(config).is_file() else None


async def kill_by_daemon(place: Place, key: str, *, flatten: bool, by: str | None = None) -> dict[str, Any]:
    """Let the daemon send the kill.

    If the daemon or its service does not answer, try again with the same idempotency key.
    """
    import asyncio

    from bot.cli.common.daemon_client import Hung, Silent
    from bot.clock import monotonic_ns

    end_ns = monotonic_ns() + int(WITHIN_S * 1e9)
    last_reason = ""
    body = {"flatten": flatten, "key": key} | ({} if by is None else {"by": by})
    while True:
        try:
            result: dict[str, Any] = place.ask("POST", "/kill", body)["result"]
        except Silent as error:
            if monotonic_ns() > end_ns:
                hint = _hint_without_daemon(place) if isinstance(error, Hung) else ""
                raise Silent(f"{error}; {NOT_KNOWN}{hint}") from None
            last_reason = _print_retry(str(error), last_reason)
            await asyncio.sleep(LOOK_S)
        else:
            return result


def _hint_without_daemon(place: Place) -> str:
    """How to kill without a daemon that hangs but holds the only key."""
    from bot.runtime.liveness.instance_lock import holder_pid

    pid = holder_pid(place.folder)
    return (
        ""
        if pid is None
        else f"; or end the daemon (kill -9 {pid}) and run bot kill again, which then calls the service itself"
    )


def _print_retry(reason: str, last_reason: str) -> str:
    """Print why the call is retried, unless this reason was printed last. Returns the reason."""
    if reason != last_reason:
        click.echo(f"no answer yet ({reason}); retrying for {WITHIN_S:g} s at most", err=True)
    return reason


async def _kill_at_service(client: Client, key: str, *, flatten: bool) -> KillResult:
    """Call the service until it answers, always with the same idempotency key, so that a lost answer does not kill
    twice.
    """
    import asyncio

    from bot.cli.common.daemon_client import Silent
    from bot.client.retry import Backoff
    from bot.clock import monotonic_ns
    from bot.errors import OutcomeUnknown, TryLater

    end_ns = monotonic_ns() + int(WITHIN_S * 1e9)
    tries, last_reason = 0, ""
    while True:
        try:
            return await client.kill(flatten=flatten, key=key)
        except (TryLater, OutcomeUnknown) as error:
            tries += 1
            if monotonic_ns() > end_ns:
                raise Silent(
                    f"the service did not answer within {WITHIN_S:g} s ({error.code}: {error.message}); {NOT_KNOWN}"
                ) from None
            last_reason = _print_retry(f"{error.code}: {error.message}", last_reason)
            wait_ms = max(getattr(error, "after_ms", 0) or 0, Backoff().wait_ms(tries, 0.5))
            await asyncio.sleep(min(wait_ms / 1000, WAIT_S_MAX))


async def _open_positions(client: Client) -> list[dict[str, Any]]:
    """Wait up to FLAT_WITHIN_S for the service to close everything; return the positions that are still open."""
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
            return [position.model_dump(mode="json", by_alias=True) for position in positions]
        await asyncio.sleep(LOOK_S)


def _report(body: dict[str, Any], *, flatten: bool, as_json: bool) -> int:
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
    for trade in body["trades"]:
        click.echo(f"  closed      {trade['symbol']} {trade['side']} {trade['size']} ({trade['id']})")
    for position in body["positions"]:
        stop = (
            ""
            if flatten
            else ", WITHOUT A STOP ORDER"
            if position.get("stopPx") is None
            else f", stop at {position['stopPx']}"
        )
        click.echo(
            f"  {'STILL OPEN' if flatten else 'stays open':<11} {position['coin']} {position['side']}"
            f" {position['size']}{stop}"
        )
    if not body["positions"]:
        click.echo("  positions   none")
    if still_open:
        click.echo("The service goes on closing them; check again with bot status")
    click.echo("To lift it: bot kill --lift, with the owner's key.")
    return int(Exit.TIMEOUT if still_open else Exit.DONE)
