"""The pytest plugin: fixtures `sandbox` and `hyperliquid`, each with a mark.

Every pytest run of an environment with this package imports it, so it imports only pytest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bot.testing.hyperliquid import LocalExchange
    from bot.testing.sandbox import Sandbox

MARK = (
    "sandbox(clock='manual', seed=1, markets=None, balance='10000', prices='simulated'): settings of the `sandbox`"
    " fixture's service"
)

EXCHANGE_MARK = (
    "hyperliquid(clock='manual', seed=1, network='testnet', prices='held', accounts={}, switches={}): "
    "settings of the `hyperliquid` fixture's exchange"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    config.addinivalue_line("markers", EXCHANGE_MARK)


@pytest.fixture
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A trading service of the test's own, on a free port, with play money and one account. It ends with the test.

    Its clock stands still until the test advances it. `@pytest.mark.sandbox(clock="60x", seed=3, markets=["BTC"])` sets
    other values.
    """
    from bot.testing.sandbox import Options, Sandbox, options_of

    mark = request.node.get_closest_marker("sandbox")
    options, wrong = Options(), ""
    try:
        options = options_of(() if mark is None else mark.args, {} if mark is None else mark.kwargs)
    except (TypeError, ValueError) as error:
        wrong = f"@pytest.mark.sandbox: {error}"
    if wrong:
        pytest.fail(wrong, pytrace=False)
    with Sandbox(options) as running:
        yield running


@pytest.fixture
def hyperliquid(request: pytest.FixtureRequest) -> Iterator[LocalExchange]:
    """A local exchange in Hyperliquid's wire form, on a free port: `hyperliquid.base_url` is the address for any
    client.

    Clock and prices stand still until the test moves them. `@pytest.mark.hyperliquid(accounts={"0x...": "1000"})` funds
    accounts. Needs the extra `exchange`.
    """
    from bot.testing.hyperliquid import ExchangeOptions, LocalExchange, exchange_options

    mark = request.node.get_closest_marker("hyperliquid")
    options, wrong = ExchangeOptions(), ""
    try:
        options = exchange_options(() if mark is None else mark.args, {} if mark is None else mark.kwargs)
    except (TypeError, ValueError) as error:
        wrong = f"@pytest.mark.hyperliquid: {error}"
    if wrong:
        pytest.fail(wrong, pytrace=False)
    with LocalExchange(options) as running:
        yield running
