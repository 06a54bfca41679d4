"""Finds the entry point of a name among the installed packages.

Two packages with one name are an error: code of a plug-in runs with our keys.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from bot.errors import ConfigError


def names_of(group: str) -> list[str]:
    """The names of a group's entry points."""
    return sorted({entry.name for entry in entry_points(group=group)})


def offered(group: str, name: str) -> EntryPoint | None:
    """The entry point of this name; None if no package offers it. ConfigError if several packages do."""
    # One package can be found twice, by two entries of the import path.
    offers = {(_package(entry), entry.value): entry for entry in entry_points(group=group) if entry.name == name}
    if len(offers) > 1:
        packages = " and ".join(f"{package} ({value})" for package, value in sorted(offers))
        raise ConfigError(f"{group} {name!r} is offered by {packages}: remove all of these packages but one")
    return next(iter(offers.values()), None)


def _package(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else "a package without a name"
