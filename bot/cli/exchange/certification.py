"""`bot exchange certify`: shows with a real account which assumptions about its exchange are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common.shared_options import yes_option
from bot.cli.exchange.account import account_options, url_of
from bot.errors import ConfigError, Exit

if TYPE_CHECKING:
    from bot.exchanges.hyperliquid.actions.signing import Signer
    from bot.exchanges.hyperliquid.certification.readiness import CertificationPlan
    from bot.exchanges.hyperliquid.certification.run import CertificationRun, ScenarioResult
    from bot.exchanges.hyperliquid.certification.session import ContractSession

EPILOG: Final = """\b
Examples:
  bot exchange certify --testnet --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 --agent-key-file secrets/agent
  bot exchange certify --testnet --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 --agent-key-file secrets/agent \
--only reduce_larger --only close_minimum --yes
  bot exchange certify --testnet --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 --agent-key-file secrets/agent \
--clean

\b
Exit 0: the run ended and left nothing open. Otherwise 1 nothing was sent, the run was stopped, or something is left
open; 4 the key file cannot be used; 5 no answer; 130 ended by Ctrl-C, after it has cleaned up.
"""
# What must be typed before anything is sent to the main network.
WORD: Final = "real money"


@click.command(epilog=EPILOG)
@account_options
@click.option("--testnet", "is_testnet", is_flag=True, help="The same as --network testnet.")
@click.option(
    "--agent-key-file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="File with the agent's key, which signs orders.",
)
@click.option("--market", default="BTC", show_default=True, metavar="NAME", help="The market that is traded.")
@click.option("--only", multiple=True, metavar="NAME", help="Show this assumption only; repeatable.")
@click.option("--long", "has_long", is_flag=True, help="Also run what takes until the next full hour.")
@click.option("--clean", "is_clean", is_flag=True, help="Only cancel all orders and close all positions.")
@click.option(
    "--max-cost",
    type=click.FloatRange(0.1, 100),
    default=2.0,
    show_default=True,
    metavar="USD",
    help="Stop at this cost.",
)
@click.option(
    "--report",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("certification.json"),
    show_default=True,
    metavar="FILE",
    help="Report as JSON; the same as text beside it.",
)
@yes_option("Do not ask. On the main network a word must still be typed.")
def certify(*, is_testnet: bool, network: str, url: str | None, path: Path, as_json: bool, **given: Any) -> int:
    """Try with about 1 USD of a real account which assumptions about the exchange are right, and write a report.

    The account must be empty: no position and no open order. Each scenario cleans up after itself, also after Ctrl-C.
    """
    import asyncio

    from bot.exchanges.hyperliquid.actions.signing import Signer
    from bot.operating_system import harden

    if is_testnet and network == "mainnet":
        raise click.UsageError("--testnet and --network mainnet name two networks: give one of them")
    if path.suffix == ".txt":
        raise click.UsageError(f"--report {path}: the text stands beside the JSON; name a file such as report.json")
    harden()
    signer = Signer(given["agent_key_file"], is_mainnet=network == "mainnet")
    certification = Certification(network, url_of(network, url), signer, given)
    return asyncio.run(certification.run(path, as_json=as_json))


class Certification:
    """One run of the command."""

    def __init__(self, network: str, url: str, signer: Signer, given: dict[str, Any]) -> None:
        self._network, self._url, self._signer, self._given = network, url, signer, given

    async def run(self, path: Path, *, as_json: bool) -> int:
        from bot.clock import SystemClock
        from bot.exchanges.hyperliquid.certification.http_access import HttpAccess
        from bot.exchanges.hyperliquid.certification.readiness import account_faults, plan_of
        from bot.exchanges.hyperliquid.certification.session import ContractSession, market_named
        from bot.exchanges.hyperliquid.certification.wire_orders import ContractMarket
        from bot.exchanges.hyperliquid.checks import CheckRequest
        from bot.exchanges.hyperliquid.transport import Transport

        given = self._given
        try:
            plan = plan_of(given["only"], has_long=given["has_long"])
        except ValueError as error:
            raise click.UsageError(f"--only {error}") from None
        clock = SystemClock()
        async with Transport(self._url, pauses_s=()) as transport:
            first = ContractMarket(given["market"], 0, 0)
            session = ContractSession(HttpAccess(transport, clock), self._signer, given["address"], first)
            request = CheckRequest(self._network, self._url, self._signer.address, (given["market"],))
            _refuse(await account_faults(session.account, request, clock))
            session.market = await market_named(session, given["market"])
            if given["is_clean"]:
                return await self._clean(session)
            return await self._certify(session, plan, path, as_json=as_json)

    async def _clean(self, session: ContractSession) -> int:
        from bot.exchanges.hyperliquid.certification.readiness import open_things

        things = await open_things(session.account)
        if not things:
            click.echo("nothing is open")
            return Exit.DONE
        self._ask(f"This cancels and closes {'; '.join(things)}. Do it?")
        left = await session.clean(await session.account.dex_names())
        click.echo("nothing is open" if left is None else f"LEFT OPEN: {left}", err=left is not None)
        return Exit.DONE if left is None else Exit.ERROR

    async def _certify(self, session: ContractSession, plan: CertificationPlan, path: Path, *, as_json: bool) -> int:
        import asyncio
        import json

        from bot.clock import iso
        from bot.exchanges.hyperliquid.certification.readiness import money_faults, open_things
        from bot.exchanges.hyperliquid.certification.report import result_line
        from bot.exchanges.hyperliquid.certification.run import CertificationRun

        if things := await open_things(session.account):
            _refuse([f"the account has {'; '.join(things)}: use an empty account, or run this with --clean first"])
        _refuse(await money_faults(session.account, plan))
        self._ask(_question(plan, self._given))
        begun, run = iso(session.access.now_ms()), CertificationRun(stopped="it has not ended yet")

        def write() -> dict[str, Any]:
            return write_report(path, run, self._about(begun, iso(session.access.now_ms())))

        def tell(result: ScenarioResult) -> None:
            write()
            for known in () if as_json else result.assumptions:
                click.echo(result_line(known))

        # A file that cannot be written is known before anything is sent, and kill -9 leaves what was seen.
        write()
        try:
            await run.run(session, plan.scenarios, int(self._given["max_cost"] * 10**8), tell)
        except asyncio.CancelledError:
            run.stopped = "by Ctrl-C"
        report = write()
        if as_json:
            click.echo(json.dumps({name: value for name, value in report.items() if name != "scenarios"}))
        else:
            click.echo(f"report: {path} and {path.with_suffix('.txt')}; it holds no key, no address and no signature")
        if run.stopped is not None:
            click.echo(f"STOPPED: {run.stopped}", err=True)
        if run.stopped == "by Ctrl-C":
            return Exit.STOPPED
        return Exit.DONE if run.stopped is None else Exit.ERROR

    def _about(self, begun: str, ended: str) -> dict[str, Any]:
        from bot import __version__

        place = {"exchange": "hyperliquid", "network": self._network, "market": self._given["market"]}
        return {**place, "version": __version__, "begunAt": begun, "endedAt": ended}

    def _ask(self, question: str) -> None:
        """Ask once; nothing is sent without a yes."""
        if self._network == "mainnet":
            click.echo(question, err=True)
            typed = _typed(lambda: click.prompt(f"This is the main network. Type {WORD} to go on", err=True))
            if typed != WORD:
                raise click.ClickException(f"nothing was sent: {WORD!r} was not typed")
        elif not self._given["yes"] and not _typed(lambda: click.confirm(question, err=True)):
            raise click.ClickException("nothing was sent; --yes does not ask")


def _typed(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except click.Abort:
        click.echo(err=True)
        return None


def _refuse(faults: list[str]) -> None:
    if faults:
        raise click.ClickException("\n".join([*faults, "nothing was sent"]))


def _question(plan: CertificationPlan, given: dict[str, Any]) -> str:
    return (
        f"{len(plan.scenarios)} scenarios send at most {plan.actions} actions in about {plan.minutes} minutes. They"
        f" buy and sell for at most {plan.turnover_usd} USD: about {plan.fees_usd} USD of fees, and the spread. The"
        f" run stops when it has cost {given['max_cost']:g} USD. Do it?"
    )


def write_report(path: Path, run: CertificationRun, about: dict[str, Any]) -> dict[str, Any]:
    """Write the report as JSON and as text. ConfigError if that is not possible."""
    import json

    from bot.exchanges.hyperliquid.certification.report import certification_report, report_lines
    from bot.files import write_private

    report = certification_report(run, about)
    try:
        write_private(path, json.dumps(report, indent=1).encode())
        write_private(path.with_suffix(".txt"), ("\n".join(report_lines(report)) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"--report {path}: {error.strerror}; name a file that can be written") from None
    return report
