"""TradingView's lightweight-charts: the file comes from the installed package `litecharts`, and only the file that is
known is served.

The package is a wrapper by others under the MIT licence; it has no dependency. Its file is the one that the npm package
of lightweight-charts 5.1.0 ships, byte for byte (Apache-2.0). Without it the pages show the charts that the server
draws.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import metadata
from pathlib import Path
from typing import Final

PACKAGE: Final = "litecharts"
FILE: Final = "litecharts/js/lightweight-charts.js"
SHA256: Final = "756b0ba9f58930226d6b8b9d47ad310448ab85d799ea1f7c2c02304777c10b52"
NOTICE: Final = "TradingView Lightweight Charts™. Copyright (с) 2025 TradingView, Inc. https://www.tradingview.com/"
# The style that the library adds for its logo. The policy of the pages allows this style and no other.
STYLE: Final = (
    "a#tv-attr-logo{--fill:#131722;--stroke:#fff;position:absolute;left:10px;bottom:10px;"
    "height:19px;width:35px;margin:0;padding:0;border:0;z-index:3;}"
    "a#tv-attr-logo[data-dark]{--fill:#D1D4DC;--stroke:#131722;}"
)
STYLE_SHA256: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()


def chart_script() -> bytes | None:
    """The library; None if its package is missing or has another file."""
    try:
        path = Path(str(metadata.distribution(PACKAGE).locate_file(FILE)))
        script = path.read_bytes()
    except (metadata.PackageNotFoundError, OSError):
        return None
    return script if hashlib.sha256(script).hexdigest() == SHA256 else None
