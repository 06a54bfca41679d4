"""Smaller environments made of the packages of this one, and the wheel, for tests of what others install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from tests.documents import ROOT

WAIT_S = 120
DOCKERFILE = (ROOT / "Dockerfile").read_text()
# Source -> folder of each COPY out of the project.
COPIES = {
    source: target
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    for *sources, target in [line.split()]
    for source in sources
}
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


def build_wheel(folder: Path) -> Path:
    """The wheel, built from the files that the Dockerfile copies by the build backend that is installed here,
    without a network.
    """
    tree = folder / "tree"
    for source, target in COPIES.items():
        path, into = ROOT / source, tree / target
        into.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, into, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, into)
    build = "import uv_build, sys; uv_build.build_wheel(sys.argv[1])"
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=tree, env=environ, check=True, timeout=WAIT_S)
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment_of(wheel: Path, folder: Path) -> Path:
    """A virtual environment with the core dependencies and the wheel; nothing in it leads back to the project's
    tree.
    """
    uv = ROOT / ".tools" / "bin" / "uv"
    if not uv.exists():
        pytest.skip("uv is not in .tools: run `make test`")
    python = folder / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True, timeout=WAIT_S)
    (packages,) = folder.glob("lib/python*/site-packages")
    for path in folders_of(CORE):
        if not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    install = [uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, wheel]
    subprocess.run(install, check=True, timeout=WAIT_S)
    return folder
