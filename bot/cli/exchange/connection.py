"""`bot exchange connect`: check an account and its agent's key, and write them into a config."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import re
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bot.cli.common.shared_options import json_option, yes_option
from bot.cli.exchange.account import AddressParam
from bot.errors import ConfigError, Exit

if TYPE_CHECKING:
    from bot.config import Settings

EPILOG: Final = """\b
Examples:
  bot exchange connect --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 --agent-key-file secrets/agent
  bot exchange connect bot.yaml --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 --agent-key-file secrets/agent
  bot exchange connect bot.yaml --network mainnet --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 \
--agent-key-file secrets/agent

\b
Exit 0: connected. Otherwise 1 a check failed or you said no, 4 the config, the key file or the database cannot be
used, 5 no answer of the exchange. Then nothing is written.
"""
BLOCK: Final = """\
account:
  exchange: hyperliquid
  network: {network}
  address: "{address}"
  agent_key: "${{file:{key}}}"
"""
MAINNET: Final = "mainnet"
# The main network takes entries only with its typed word and a cap, which begins with this; only an edit raises it.
CAP_USD: Final = 100
REAL_MONEY: Final = f"  real_money: {MAINNET}\n  exposure_cap_usd: {CAP_USD}\n"
CAP_LINE: Final = re.compile(r"exposure_cap_usd\s*:\s*([0-9._]+)")
# After its expiry an action cannot act; what was performed is seen so much later at the latest.
PATIENCE_MS: Final = 2_000


class NetworkParam(click.ParamType[str]):
    """testnet, mainnet or a port."""

    name = "network"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"testnet|mainnet|[1-9][0-9]{0,4}", value, re.ASCII):
            self.fail(f"{value!r} is no network; write testnet, mainnet or the port of a local exchange", param, ctx)
        return value


@click.command(epilog=EPILOG)
@click.argument("config", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--network",
    type=NetworkParam(),
    default="testnet",
    show_default=True,
    metavar="testnet|mainnet|PORT",
    help="Network of the account, or the port of a local exchange.",
)
@click.option("--address", type=AddressParam(), required=True, metavar="0x...", help="Address of the account to trade.")
@click.option(
    "--agent-key-file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="File with the agent's key, readable by you alone. Only its address is sent.",
)
@yes_option("Do not ask before the config is written. The main network asks for its name all the same.")
@json_option("Print one JSON object at the end; all else goes to standard error.")
def connect(config: Path | None, network: str, address: str, agent_key_file: Path, *, yes: bool, as_json: bool) -> int:
    """Check an account, its agent's key and the network, and put them into CONFIG; without CONFIG, print them.

    If the service of CONFIG has another agent, nothing changes until all of that agent's actions are over or expired.
    """
    import json

    if not as_json:
        return _connect(config, network, address, agent_key_file, is_sure=yes)
    with contextlib.redirect_stdout(sys.stderr):
        code = _connect(config, network, address, agent_key_file, is_sure=yes)
    place = {"network": network, "address": address, "agentKeyFile": str(agent_key_file)}
    click.echo(json.dumps({"connected": code == Exit.DONE, "config": None if config is None else str(config), **place}))
    return code


def _connect(config: Path | None, network: str, address: str, agent_key_file: Path, *, is_sure: bool) -> int:
    from bot.exchanges.hyperliquid.agent_key import address_of_key_file

    agent = address_of_key_file(agent_key_file)
    if config is not None and not config.is_file():
        raise ConfigError(f"{config}: there is no such file; bot init makes a project with a config")
    if not asyncio.run(_is_right(network, address, agent)):
        click.echo("nothing was written: mend what failed, and run this again")
        return Exit.ERROR
    if network == MAINNET and not _is_meant():
        click.echo("nothing was written")
        return Exit.ERROR
    more = REAL_MONEY if network == MAINNET else ""
    if config is None:
        click.echo(BLOCK.format(network=_quoted(network), address=address, key=agent_key_file) + more, nl=False)
        return Exit.DONE
    before = config.read_text(encoding="utf-8")
    key = _relative(agent_key_file, config)
    after = with_block(before, BLOCK.format(network=_quoted(network), address=address, key=key) + more)
    return _write(config, before, after, (network, address, agent), is_sure=is_sure)


def _write(config: Path, before: str, after: str, place: tuple[str, str, str], *, is_sure: bool) -> int:
    from bot.checks.config_check import checked_text
    from bot.cli.common.files import write_atomic

    settings = checked_text(after, config)
    _drain(settings, *place)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(config), str(config), lineterm="")
    click.echo("\n".join(lines) or "the config has this account already")
    if not is_sure and not click.confirm("Write it?"):
        click.echo("nothing was written")
        return Exit.ERROR
    write_atomic(config, after)
    click.echo(f"connected: bot doctor {config} checks the rest, and bot run {config} follows the account")
    return Exit.DONE


async def _is_right(network: str, address: str, agent: str) -> bool:
    """Print the result of each check. False if one failed."""
    from bot.clock import SystemClock
    from bot.exchanges.hyperliquid.account import HyperliquidAccount
    from bot.exchanges.hyperliquid.checks import CheckRequest, read_checks
    from bot.exchanges.hyperliquid.live.exchange import url_of
    from bot.exchanges.hyperliquid.transport import Transport

    request = CheckRequest("testnet" if network.isdigit() else network, url_of(network), agent, ())
    async with Transport(request.url) as transport:
        checks = await read_checks(HyperliquidAccount(transport, address), request, SystemClock())
    for result in checks:
        click.echo(f"{result.level:<5} {result.check:<8} {result.message}")
    return all(result.level != "fail" for result in checks)


def _is_meant() -> bool:
    click.echo(
        f"This is real money. It begins with at most {CAP_USD} USD of exposure; only an edit of the config raises that."
    )
    return str(click.prompt(f"Type {MAINNET} to go on", default="", show_default=False)).strip() == MAINNET


def _quoted(network: str) -> str:
    return f'"{network}"' if network.isdigit() else network


def _relative(key: Path, config: Path) -> str:
    """The path of the key as the config has it: from its own folder, if it is below it."""
    whole, folder = key.absolute(), config.absolute().parent
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)


def with_block(text: str, block: str) -> str:
    """The config with this account in the place of its own.

    A cap that is written there already stays. One of play money is no higher on the main network than CAP_USD.
    """
    lines = text.splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if re.match(r"account\s*:", line)), None)
    if first is None:
        return block + "\n" + text
    end = first + 1
    while end < len(lines) and (not lines[end].strip() or lines[end][0] in " \t#"):
        end += 1
    # Comments and empty lines before the next section belong to that section.
    while end > first + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1
    old = "".join(lines[first:end])
    if (cap := CAP_LINE.search(old)) is not None and not (
        REAL_MONEY in block and "real_money" not in old and Decimal(cap[1]) > CAP_USD
    ):
        block = CAP_LINE.sub(cap[0], block) if CAP_LINE.search(block) else f"{block}  {cap[0]}\n"
    return "".join(lines[:first]) + block + "".join(lines[end:])


def _drain(settings: Settings, network: str, address: str, agent: str) -> None:
    """Wait until no action of another agent can act any more. ConfigError if the service runs, or follows another
    account.
    """
    from bot.cli.audit.audit import stored
    from bot.cli.run.embedded_service import Embedded
    from bot.clock import SystemClock
    from bot.venue.orders import exchange_actions

    service = Embedded(settings.state_dir)
    if not service.db.is_file():
        return
    account = next((known for known in stored(service.db).accounts.values() if known.exchange is not None), None)
    if account is None or account.exchange is None:
        raise ConfigError(f"{service.db}: is the database of a play-money account; set another state_dir in the config")
    exchange = account.exchange
    if (exchange.network, account.address) != (network, address):
        place = f"{account.address} at {exchange.exchange}:{exchange.network}"
        raise ConfigError(f"{service.db}: follows {place}; set another state_dir in the config for another account")
    if exchange.signer in (None, agent):
        return
    if service.is_alive():
        raise ConfigError("the service of this config runs with another agent: bot stop, then run this again")
    ends = [action.expires_ms for action in exchange_actions.undecided(exchange) if action.signer != agent]
    until_ms = max(ends, default=0) + PATIENCE_MS - exchange.clock_difference_ms
    wait_ms = until_ms - SystemClock().now_ms()
    if ends and wait_ms > 0:
        click.echo(
            f"{len(ends)} actions of {exchange.signer} are undecided: waiting {wait_ms / 1000:.0f} s for their end"
        )
        time.sleep(wait_ms / 1000)
