"""How ready a config is for real money, for `bot ready` and `bot run`: asks the service, and a person below grade C."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from pydantic import SecretStr

    from bot.checks.readiness import Readiness
    from bot.checks.readiness_lines import ServiceFacts
    from bot.config import Settings
    from bot.wire.exchange_facts import ExchangeFact

# real time for each answer of the service
ASK_S: Final = 5.0


def ask_before_run(settings: Settings, config: Path, *, yes: bool) -> None:
    """Before `bot run` trades real money below grade C: print the checklist, and ask once for this version.

    UsageError if the answer is no, or if there is nobody to ask. `yes`: do not ask, and look at nothing, so that a
    restart waits for nothing.
    """
    from bot.checks.evidence import keep_evidence, version_of
    from bot.checks.readiness import ENOUGH
    from bot.checks.readiness_lines import ServiceFacts, is_play_money

    if yes or (settings.account.embedded and is_play_money(settings, ServiceFacts(is_own=True))):
        return
    api_key = settings.account.api_key
    readiness, service = readiness_for(settings, config, None if api_key is None else api_key.get_secret_value())
    # The run itself reports a key that the service refuses.
    if service.is_refused or is_play_money(settings, service):
        return
    for line in readiness_text(readiness):
        click.echo(line, err=True)
    if readiness.is_enough or _has_answered(settings):
        return
    question = f"{config} has the grade {readiness.grade}, and {ENOUGH} is the least for real money"
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        again = f"bot run {quote(str(config))}"
        raise click.UsageError(f"{question}, and nobody can be asked: raise it, or start with {again} --yes")
    if not click.confirm(f"{question}. Trade all the same?", err=True):
        raise click.UsageError(f"{question}: raise it with the commands above")
    keep_evidence(settings.state_dir, "answer", version_of(settings), {"grade": readiness.grade})


def _has_answered(settings: Settings) -> bool:
    """True if a person has said yes for this version before."""
    from bot.checks.evidence import EvidenceDamaged, changes, read_evidence, version_of

    try:
        answers = [piece for piece in read_evidence(settings.state_dir) if piece.kind == "answer"]
    except EvidenceDamaged:
        return False
    now = version_of(settings)
    return any(not changes(piece.version, now) for piece in answers)


def readiness_for(settings: Settings, config: Path, api_key: str | None) -> tuple[Readiness, ServiceFacts]:
    """The readiness of a config, and what its service said. `api_key`: None if it cannot be read here."""
    from bot.checks.evidence import EvidenceDamaged, read_evidence
    from bot.checks.readiness_lines import ReadinessCase, readiness_of
    from bot.client.names import run_unheld
    from bot.clock import SystemClock
    from bot.runtime.alerts.notifier import key_of

    service = run_unheld(_service_answer(settings, api_key))
    evidence, unreadable = [], None
    try:
        evidence = read_evidence(settings.state_dir)
    except EvidenceDamaged as error:
        unreadable = str(error)
    addresses = [(reference, None if url is None else key_of(url)) for reference, url in addresses_of(settings, config)]
    case = ReadinessCase(config, settings, evidence, service, SystemClock().now_ms(), addresses, unreadable)
    return readiness_of(case), service


def readiness_text(readiness: Readiness) -> Iterator[str]:
    """The checklist for a person."""
    from bot.checks.readiness import BELOW_ENOUGH, RULES

    most = sum(rule.points for rule in RULES.values())
    yield f"{readiness.name}: grade {readiness.grade}, {readiness.points:g} of {most} points"
    for line in readiness.lines:
        points = f"{line.points:g}/{RULES[line.name].points}"
        yield f"  {line.state:<9} {points:>5}  {line.name:<15} {line.evidence}"
        if line.remedy is not None and line.share < 1:
            yield f"{'':<34}-> {line.remedy}"
    if readiness.missing:
        yield f"At most {BELOW_ENOUGH} without a point for: {', '.join(readiness.missing)}"
    best = readiness.next_line
    if best is not None:
        yield f"What would raise it most is {best.name}: {best.remedy}"


async def _service_answer(settings: Settings, api_key: str | None) -> ServiceFacts:
    """What the service says about the key, the clock and its money. Sends no order."""
    from bot.checks.readiness_lines import ServiceFacts, missing_scopes
    from bot.client import Client
    from bot.client.http import Timeouts
    from bot.errors import ApiError, is_access_lost

    if settings.account.embedded:
        return ServiceFacts(is_own=True, agent=await _agent(settings))
    if api_key is None:
        return ServiceFacts(problem="the API key cannot be read here: ask as the daemon's user, or as root")
    client = Client(settings.account.base_url, api_key, timeouts=Timeouts(total=ASK_S))
    async with client:
        try:
            account = await client.account()
        except ApiError as error:
            why = f"{settings.account.base_url}: {error.message} ({error.code})"
            return ServiceFacts(problem=why, is_refused=is_access_lost(error))
        key, skew_ms = account.limits.key, client.clock.skew_ms
        if key is None:
            why = "this is the token of a person's sign-in, not an API key"
            return ServiceFacts(environment=account.environment, skew_ms=skew_ms, problem=why)
        lacks = missing_scopes(key.scopes, settings)
        return ServiceFacts(
            environment=account.environment,
            scopes=key.scopes,
            missing_scopes=lacks,
            expires_ms=key.expires_at,
            skew_ms=skew_ms,
        )


async def _agent(settings: Settings) -> ExchangeFact | None:
    """What the embedded service knows of the agent of its account at an exchange. None: it does not say."""
    from bot.cli.run.embedded_service import Embedded
    from bot.client import Client
    from bot.client.http import Timeouts
    from bot.errors import ApiError
    from bot.wire.exchange_facts import facts

    service = Embedded(settings.state_dir)
    base_url = service.base_url
    if settings.account.agent_key is None or base_url is None or not service.is_alive():
        return None
    async with Client(base_url, None, timeouts=Timeouts(total=ASK_S)) as client:
        try:
            status = await client.status()
        except ApiError:
            return None
    known = () if status.exchange is None else facts(status.exchange, status.server_time or 0)
    return next((fact for fact in known if fact.name == "agent"), None)


def addresses_of(settings: Settings, config: Path) -> list[tuple[str, SecretStr | None]]:
    """The references to addresses for notices, and the addresses; None for one that cannot be read here."""
    from pydantic import SecretStr

    from bot.cli.common.daemon_client import plain_data
    from bot.config.document import Rejected
    from bot.config.references import References

    look = References(config.absolute().parent, os.environ)
    addresses: list[tuple[str, SecretStr | None]] = []
    for reference in [] if settings.notify is None else plain_data(config)["notify"]["urls"]:
        try:
            addresses.append((reference, SecretStr(look(reference, "urls"))))
        except Rejected:
            addresses.append((reference, None))
    return addresses
