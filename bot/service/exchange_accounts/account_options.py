"""Which account at an exchange a service follows: by its options, or by its database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bot.errors import ConfigError
from bot.exchanges.registry import open_exchange
from bot.service.state_machine.machine import Machine
from bot.venue.model.state import VenueAccount
from bot.venue.orders.exchange_entries import MAINNET


@dataclass(frozen=True, slots=True)
class FollowedAccount:
    """Which account at which exchange is followed. `network`: testnet, mainnet or a port on this machine.

    `exposure_cap`: the most exposure that entries may lead to. `is_real_money`: a person has typed the word for entries
    on the main network.
    """

    exchange: str
    network: str
    address: str
    agent_key_file: Path | None = None
    exposure_cap: int | None = None
    is_real_money: bool = False

    @property
    def cap(self) -> int | None:
        """The cap that holds. None: no cap, and on the main network no entries: those need the word as well."""
        return self.exposure_cap if self.is_real_money or self.network != MAINNET else None


def exchange_account(machine: Machine) -> VenueAccount | None:
    """The account of this service that follows an exchange."""
    accounts = dict.values(machine.state.accounts)
    return next((account for account in accounts if account.exchange is not None), None)


def followed_account(machine: Machine, wanted: FollowedAccount | None, *, has_file: bool) -> FollowedAccount | None:
    """The account to follow: the given one, or that of the database. ConfigError if they differ, or cannot be kept."""
    known = exchange_account(machine)
    if known is not None and known.exchange is not None:
        stored = FollowedAccount(known.exchange.exchange, known.exchange.network, known.address)
        if wanted is None:
            wanted = stored
        elif (wanted.exchange, wanted.network, wanted.address) != (stored.exchange, stored.network, stored.address):
            raise ConfigError(
                f"{machine.log.path}: this database follows {stored.address} at {stored.exchange}:{stored.network}, not"
                f" {wanted.address} at {wanted.exchange}:{wanted.network}; use a new database"
            )
    if wanted is None:
        return None
    if not has_file:
        raise ConfigError("an account at an exchange needs a database file; name one with --db")
    if not machine.clock.is_real:
        raise ConfigError("an account at an exchange needs --clock real")
    # Refuses an exchange or a network that is not known.
    open_exchange(wanted.exchange, wanted.network)
    return wanted
