"""The names of `sqlite_utils` that a journal uses.

`sqlite_utils` imports pandas and numpy where they are installed: 0.3 s and 40 MB at each start. No row of a journal
holds values of theirs.
"""

from __future__ import annotations

import sys
from typing import Any

_modules: Any = sys.modules
_hidden = [name for name in ("pandas", "numpy") if name not in _modules]
# None in sys.modules makes an import fail, as if the package were not installed.
_modules.update(dict.fromkeys(_hidden))
try:
    from sqlite_utils import Database, Migrations
finally:
    for _name in _hidden:
        del _modules[_name]

__all__ = ["Database", "Migrations"]
