"""Write the screenshots of the README and of docs/dashboard.md: python -m tests.dashboard.screenshots [FOLDER]

It runs the demo until it has two positions and a few trades. Each picture stays below SIZE_MAX bytes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.dashboard.browsing import Visitor, demo

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"
SIZE_MAX = 150_000
# File -> page, width, height, colours.
PICTURES = {
    "dashboard-overview.png": ("/?range=1d", 1280, 800, "light"),
    "dashboard-trades.png": ("/trades", 1280, 1000, "light"),
    "dashboard-market.png": ("/market/BTC", 1180, 760, "dark"),
    "dashboard-phone.png": ("/", 390, 844, "dark"),
}
READY = (
    "document.querySelectorAll('#live-positions tbody tr').length > 1 &&"
    " document.querySelectorAll('#live-curve').length"
)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bot-") as state, demo(Path(state)) as link, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"])
        visitor = Visitor(browser, link)
        # An hour of the demo, so that the curve and the chart have something to show.
        visitor.page.wait_for_timeout(60_000)
        for name, (path, width, height, colours) in PICTURES.items():
            visitor.open("/")
            visitor.wait(READY)
            # one of its two words
            visitor.page.emulate_media(color_scheme=colours)
            visitor.page.set_viewport_size({"width": width, "height": height})
            visitor.page.goto(visitor.base + path)
            visitor.page.wait_for_timeout(2_500)
            visitor.page.screenshot(path=folder / name)
            size = (folder / name).stat().st_size
            assert size < SIZE_MAX, f"{name} has {size} bytes"
            print(f"{folder / name}: {size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main()
