"""Packages of this environment, for tests that make a smaller one out of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tests.documents import ROOT

CORE = re.findall(r"^([\w-]+)==", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
# what `pip install pytest` brings
PYTEST = ("pytest", "iniconfig", "packaging", "pluggy", "pygments")


def folders_of(names: Iterable[str]) -> Iterator[Path]:
    """The folders and modules of installed packages. A package of another platform is left out."""
    for name in names:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        yield from (Path(str(found.locate_file(top))) for top in tops)
