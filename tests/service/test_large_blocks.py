"""The process of the service maps large blocks on their own, so that freed texts of snapshots leave no holes in its
heap.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

# The heap grows by each large block that glibc does not map on its own. glibc maps the first one, and after its release
# none of that size.
SCRIPT = """
import ctypes
from bot.operating_system import map_large_blocks
from bot.service.host import MAPPED_BYTES_MIN

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks \
fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
if {is_called}:
    map_large_blocks(MAPPED_BYTES_MIN)
block = bytes(3_000_000)
del block
before = libc.mallinfo2().hblkhd
block = bytes(3_000_000)
print(libc.mallinfo2().hblkhd - before >= len(block))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc raises its threshold by itself")
@pytest.mark.parametrize("is_called", [True, False])
def test_a_large_block_is_mapped_on_its_own_after_one_was_freed(is_called: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(is_called=is_called)],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    assert done.stdout.strip() == str(is_called), "without the call glibc takes the block from its heap"
