"""Templates and static files: what the dashboard sends, loaded once at the start."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bot.chart_library import NOTICE, chart_script
from bot.errors import ConfigError
from bot.extras import install

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER: Final = Path(__file__).parent
TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
STYLES: Final = "dashboard.css"
CHART_SCRIPT: Final = "lightweight-charts.js"


class PageFiles:
    """Renders templates, and has the static files by name. ConfigError without the extra `ui`."""

    def __init__(self, *, has_charts: bool = True) -> None:
        try:
            from jinja2 import Environment, FileSystemLoader

            from bot.dashboard.values.tables import ROWS_MAX, cells
            from bot.figures import Column
        except ImportError as error:
            raise ConfigError(f"the dashboard needs the package jinja2: {install('ui')}") from error
        self._environment: Environment = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.static: dict[str, tuple[bytes, str]] = {
            path.name: (path.read_bytes(), TYPES[path.suffix]) for path in sorted((FOLDER / "static").iterdir())
        }
        # The report has the same colours and charts. A browser waits for one file before it paints.
        report = FOLDER.parent / "backtest/report"
        shared = [(report / name).read_bytes() for name in ("colours.css", "charts.css")]
        own, kind = self.static[STYLES]
        self.static[STYLES] = b"".join([shared[0], own, shared[1]]), kind
        script = chart_script() if has_charts else None
        if script is not None:
            self.static[CHART_SCRIPT] = (script, TYPES[".js"])
        digest = hashlib.sha256(b"".join(body for body, _ in self.static.values()))
        self._environment.filters["cells"] = cells
        self._environment.globals.update(
            column=Column,
            rows_max=ROWS_MAX,
            has_charts=script is not None,
            chart_notice=NOTICE,
            version=digest.hexdigest()[:12],
        )

    def compile(self) -> None:
        """Compile every template, which takes longer than any page."""
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def page(self, template: str, values: Mapping[str, Any]) -> str:
        return self._environment.get_template(f"{template}.html").render(values)

    def fragment(self, name: str, values: Mapping[str, Any]) -> str:
        return self._environment.get_template(f"fragments/{name}.html").render(values)
