"""Restores the files of a run that were removed: the lock, and the control socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, Protocol

# between two checks that the files of a run still exist
KEPT_LOOK_S: Final = 2.0


class Kept(Protocol):
    """A file of a run that must keep existing."""

    async def look(self) -> None:
        """Restore it if it is gone."""


@contextlib.asynccontextmanager
async def kept(*things: Kept, look_s: float = KEPT_LOOK_S) -> AsyncIterator[None]:
    """While the block runs, restore files that were removed, every `look_s`."""

    async def look() -> None:
        while True:
            await asyncio.sleep(look_s)
            for thing in things:
                await thing.look()

    keeper = asyncio.create_task(look(), name="keeper")
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
