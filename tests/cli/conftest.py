"""What several commands' tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bot.cli.run.embedded_service import Embedded


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short name, for sockets; whatever service was left in it is ended."""
    folder = Path(tempfile.mkdtemp(prefix="bot-"))
    yield folder
    for lock in folder.rglob("sandbox.lock"):
        Embedded(lock.parent).stop()
    shutil.rmtree(folder, ignore_errors=True)
