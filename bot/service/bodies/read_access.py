"""Reads accounts without marking them for the next snapshot."""

from __future__ import annotations

from collections.abc import Iterable

from bot.venue.model.state import State, VenueAccount


def peek(state: State, name: str) -> VenueAccount:
    """An account for a reader that does not change it."""
    return dict.__getitem__(state.accounts, name)


def peek_all(state: State) -> Iterable[VenueAccount]:
    """All accounts in order, for a reader that does not change them."""
    return dict.values(state.accounts)
