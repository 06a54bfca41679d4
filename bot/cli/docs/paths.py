"""Where the documentation is: its sources in a clone of the project, and the site that is built of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[3]
SOURCES: Final = PROJECT / "docs"
SITE: Final = PROJECT / "build" / "site"
