"""Accounts read without changing what the next snapshot has to write."""

from __future__ import annotations

from collections.abc import Iterable

from bot.venue.state import Account, State


def peek(state: State, name: str) -> Account:
    """For readers: an account that they do not change."""
    return dict.__getitem__(state.accounts, name)


def peek_all(state: State) -> Iterable[Account]:
    """The same, all of them in their order."""
    return dict.values(state.accounts)
