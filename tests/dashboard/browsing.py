"""A running demo with its dashboard, and a browser that is signed in to it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.processes import until
from tests.screen_fit import WIDTHS

WAIT_S = 90


def bot(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bot", *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@contextlib.contextmanager
def demo(folder: Path, *options: str) -> Iterator[str]:
    """The demo with its dashboard; gives a link that opens the dashboard once."""
    command = [sys.executable, "-m", "bot", "demo", "--state-dir", str(folder), *options]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = []
        try:
            for line in process.stdout:
                said.append(line)
                if line.startswith("dashboard   http"):
                    break
            else:
                raise AssertionError("".join(said))
            assert "#" not in said[-1], "no link where the output may be a log"
            drain = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)
            given = bot("dashboard", "--state-dir", str(folder), "--link", "--json")
            assert given.returncode == 0, given.stderr
            yield json.loads(given.stdout)["link"]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(WAIT_S)
            with contextlib.suppress(UnboundLocalError):
                drain.kill()
                drain.wait()


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`bot dashboard` as a process, and what it says at its start."""
    command = [sys.executable, "-m", "bot", "dashboard", "--state-dir", str(folder), "--port", "0", "--json", *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        try:
            yield process, json.loads(line)
        finally:
            process.kill()


def enter(link: str) -> httpx.Client:
    """A browser that has opened the link."""
    address, _, code = link.partition("#")
    base = address.removesuffix("/sign-in")
    client = httpx.Client(base_url=base, headers={"Accept": "text/html"})
    answer = client.post("/sign-in", data={"code": code}, headers={"Origin": base})
    assert answer.status_code == 303, answer.text
    return client


class Visitor:
    """A browser's context that notes what the pages say on the console and which addresses they ask for."""

    def __init__(self, browser: Any, link: str, **options: Any) -> None:
        self.base = link.partition("/sign-in")[0]
        self.said: list[str] = []
        self.asked: set[str] = set()
        self.context = browser.new_context(viewport={"width": 1440, "height": 900}, **options)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.add(request.url))
        self.page.goto(link)
        self.page.wait_for_url(f"{self.base}/")

    def open(self, path: str, *, width: int = 1440) -> Any:
        """The page after its first update."""
        self.page.set_viewport_size({"width": width, "height": WIDTHS[width]})
        self.page.goto(self.base + path)
        if self.page.locator("body[data-stream]").count():
            self.page.wait_for_selector("html[data-updates]")
        return self.page

    def wait(self, condition: str) -> None:
        """Until the condition holds in the page.

        Playwright's own way evaluates text there, which the policy of the pages forbids.
        """
        until(condition, lambda: self.page.evaluate(condition), WAIT_S)
