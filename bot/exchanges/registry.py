"""The registered exchanges by name: the entry point group `bot.exchanges`.

    [project.entry-points."bot.exchanges"]
    myexchange = "mypackage.mymodule:open_exchange"

`open_exchange(place, agent_key_file)` returns a `bot.exchanges.protocol.ExchangePlugin`. It raises ConfigError for a
place that it does not know, and for a file without a key. `agent_key_file` is a path, or None for an exchange that is
only read.
"""

from __future__ import annotations

from typing import Final

from bot.errors import ConfigError
from bot.exchanges.protocol import ExchangePlugin
from bot.plugins import names_of, offered
from bot.words import did_you_mean

GROUP: Final = "bot.exchanges"


def open_exchange(name: str, place: str, agent_key_file: str | None = None) -> ExchangePlugin:
    """The exchange of this name at this place. ConfigError with similar names if there is none."""
    offer = offered(GROUP, name)
    if offer is None:
        known = names_of(GROUP)
        hint = did_you_mean(name, known) or f"; there are {', '.join(known) or 'none; install the package again'}"
        raise ConfigError(f"exchange {name!r} is not known{hint}")
    try:
        exchange: ExchangePlugin = offer.load()(place, agent_key_file)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"exchange {name!r} of {offer.value} cannot be loaded: {error}") from None
    return exchange
