"""One service for all worlds of a test: each world has an account of its own on it, and its own prices from its
first bar on.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from tests.integration.builders import Box


@pytest.fixture(autouse=True)
def _no_lines() -> Iterator[None]:
    """Worlds would print a hundred thousand lines."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    one = await Box.open()
    yield one
    await one.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where the machine has such a disk: what is tested is the order of writes, not the disk."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shm, prefix="bot-worlds-") as name:
        yield Path(name)
