"""The reserve of file descriptors. Each test is a process of its own, because the limit is the process's."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import asyncio, os, resource, socket
from bot import descriptors
from bot.descriptors import RESERVED, free, keep_reserve, reserved

def limit(soft):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def leak():
    found = []
    try:
        while True:
            found.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return found
"""

RULES = {
    "what is opened within `reserved` is opened after a leak, and nothing else is": """
        limit(256)
        keep_reserve()
        leak()
        assert free(1) == 0
        with reserved():
            assert free(RESERVED) == RESERVED
            with reserved():
                assert free(1) == 1
            assert free(1) == 1, "the inner block does not end the outer one"
        assert free(1) == 0
    """,
    "the reserve is whole again as soon as its descriptors are closed": """
        limit(256)
        keep_reserve()
        leak()
        for _ in range(3):
            with reserved():
                opened = leak()
            assert len(opened) == RESERVED
            for one in opened:
                os.close(one)
            assert free(1) == 0
    """,
    "of a small limit a quarter is reserved": """
        limit(40)
        keep_reserve()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 30
    """,
    "a limit that is changed from outside is the new one": """
        limit(256)
        keep_reserve()
        limit(64)
        with reserved():
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64, "and is not raised above itself"
        keep_reserve()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 48
        with reserved():
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64
    """,
    "without a reserve nothing is changed": """
        limit(256)
        with reserved():
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256
        assert free(10) == 10
    """,
    "who connects while not even the reserve is left is answered later, and the log says so once": """
        import structlog
        from structlog.testing import capture_logs
        from bot.runtime.control_plane import acceptor

        async def main():
            listener = socket.socket(socket.AF_UNIX)
            listener.bind("")
            listener.listen(10)
            asked = [socket.socket(socket.AF_UNIX) for _ in range(3)]
            served, tries, all_served = [], [], asyncio.Event()

            async def serve(reader, writer):
                writer.close()
                served.append(writer)
                if len(served) == len(asked):
                    all_served.set()

            def again(seconds, work):
                tries.append(seconds)
                if len(tries) == 3:
                    for each in leaked:
                        os.close(each)
                return asyncio.get_running_loop().call_soon(work)

            one = acceptor.Acceptor(listener, serve, bytes_max=1024)
            one._loop = Loop(asyncio.get_running_loop(), again)
            leaked = leak()
            for each in asked:
                each.connect(listener.getsockname())
            with capture_logs() as said:
                async with asyncio.timeout(30):
                    await all_served.wait()
            assert tries == [1.0] * 3, tries
            assert [line["event"] for line in said] == ["connection.not_accepted"], said
            one.close()
            one.close()

        class Loop:
            def __init__(self, real, call_later):
                self._real, self.call_later = real, call_later

            def __getattr__(self, name):
                return getattr(self._real, name)

        limit(256)
        asyncio.run(main())
    """,
}


@pytest.mark.parametrize("rule", RULES)
def test_it_holds_that(rule: str) -> None:
    import textwrap

    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(RULES[rule])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
