"""An event that has got a key from us.

Its base is a model of the wire, which the values of the account state do without.
"""

from __future__ import annotations

from bot.wire import Event


class Named(Event):
    """An event that came without a key and has got the key of our order by its trade id.

    It does not prove that the service shows keys.
    """

    # So the journal can distinguish it from an event that the service gave a key.
    key_from: str = "trade"
