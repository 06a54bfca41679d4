"""The pytest plugin: fixture `sandbox`, mark `sandbox`. Every pytest run of an environment with this package imports it, so it imports only pytest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bot.testing.sandbox import Sandbox

MARK = "sandbox(clock='manual', seed=1, markets=None, balance='10000', prices='simulated'): settings of the `sandbox` fixture's service"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)


@pytest.fixture
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A trading service of the test's own, on a free port, with play money and one account. It ends with the test.

    Its clock stands still until the test advances it. `@pytest.mark.sandbox(clock="60x", seed=3, markets=["BTC"])` sets other values.
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
    with Sandbox(options) as made:
        yield made
