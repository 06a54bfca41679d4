"""The fixture `hyperliquid` of tests in virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bot.testing.hyperliquid import LocalExchange, exchange_options
from tests.service.exchange_accounts.virtual_time import IS_VIRTUAL, virtual_exchange


@pytest.fixture
def hyperliquid(request: pytest.FixtureRequest) -> Iterator[LocalExchange]:
    """A local exchange on a real port, or in virtual time for a test that runs so."""
    mark = request.node.get_closest_marker("hyperliquid")
    options = exchange_options((), {} if mark is None else mark.kwargs)
    is_virtual = hasattr(request.function, IS_VIRTUAL)
    with virtual_exchange(options) if is_virtual else LocalExchange(options) as exchange:
        yield exchange
