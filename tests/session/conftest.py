"""What every test of sessions stands on: a log that the test before has not pointed at a stream that is closed by now."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    yield
    structlog.reset_defaults()
