"""The modules and the folders of `bot` import one another in one direction."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest


def imports_of(source: str, modules: frozenset[str]) -> set[str]:
    """The modules that a source text imports anywhere: at the top, inside functions and for type checking."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in node.names:
                submodule = f"{node.module}.{name.name}"
                found.add(submodule if submodule in modules else node.module)
    return found & modules


def import_graph(root: Path, package: str) -> dict[str, set[str]]:
    """Module -> the modules of the same package that it imports."""
    paths: dict[str, Path] = {}
    for path in (root / package).rglob("*.py"):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        paths[name.removesuffix(".__init__")] = path
    modules = frozenset(paths)
    return {name: imports_of(path.read_text(), modules) - {name} for name, path in paths.items()}


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Every module that `start` imports, directly or through others."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def cycles(graph: Mapping[str, set[str]]) -> Iterator[frozenset[str]]:
    """Each group of modules that import one another."""
    below = {name: reachable(graph, name) for name in graph}
    groups = {frozenset(other for other in below[name] if name in below[other]) for name in graph}
    yield from (group for group in groups if group)


def test_no_module_of_bot_imports_itself_through_others(repository: Path) -> None:
    assert list(cycles(import_graph(repository, "bot"))) == []


def folder_graph(graph: Mapping[str, set[str]], packages: frozenset[str]) -> dict[str, set[str]]:
    """Folder -> the folders that its modules import from. A module beside `bot/__init__.py` stands for itself."""

    def folder_of(module: str) -> str:
        folder = module if module in packages else module.rpartition(".")[0]
        return module if folder == "bot" else folder

    folders: dict[str, set[str]] = {folder_of(module): set() for module in graph}
    for module, imported in graph.items():
        folders[folder_of(module)] |= {folder_of(other) for other in imported} - {folder_of(module)}
    return folders


def packages_of(root: Path) -> frozenset[str]:
    return frozenset(".".join(file.parent.relative_to(root).parts) for file in (root / "bot").rglob("__init__.py"))


def test_no_folder_of_bot_imports_itself_through_others(repository: Path) -> None:
    graph = folder_graph(import_graph(repository, "bot"), packages_of(repository))
    assert list(cycles(graph)) == [], "move the module that both need into a folder below them"


def test_a_cycle_of_folders_is_found_where_no_module_imports_itself(tmp_path: Path) -> None:
    texts = {
        "bot/__init__": "",
        "bot/top/__init__": "",
        "bot/top/leaf": "",
        "bot/top/root": "def work():\n    from bot.top.pages import first\n",
        "bot/top/pages/__init__": "",
        "bot/top/pages/first": "from bot.top import leaf\n",
        "bot/errors": "",
        "bot/top/other": "from bot import errors\n",
    }
    for name, text in texts.items():
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    graph = import_graph(tmp_path, "bot")
    assert list(cycles(graph)) == []
    assert list(cycles(folder_graph(graph, packages_of(tmp_path)))) == [frozenset({"bot.top", "bot.top.pages"})]


def test_a_cycle_is_found_also_under_type_checking_and_inside_a_function(tmp_path: Path) -> None:
    (tmp_path / "bot").mkdir()
    texts = {
        "__init__": "",
        "first": "def work():\n    from bot.second import thing\n",
        "second": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bot import third\n",
        "third": "import bot.first\n",
        "apart": "from bot import first\n",
    }
    for name, text in texts.items():
        (tmp_path / "bot" / f"{name}.py").write_text(text)
    assert set(cycles(import_graph(tmp_path, "bot"))) == {frozenset({"bot.first", "bot.second", "bot.third"})}


def layers_of(repository: Path, contract: str) -> list[str]:
    """The names of a layers contract from top to bottom, without `__main__`."""
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (entry["layers"] for entry in contracts if entry["id"] == contract)
    return [name for layer in layers for name in re.findall(r"\w+", layer) if name != "__main__"]


def map_of(init: Path) -> list[str]:
    """The names at the beginning of the indented lines of a package's docstring."""
    text = ast.get_docstring(ast.parse(init.read_text())) or ""
    heads = [re.split(r" {2,}", line[4:])[0] for line in text.splitlines() if re.match(r" {4}\S", line)]
    return [name for head in heads for name in re.findall(r"\w+", head)]


@pytest.mark.parametrize(
    ("package", "contract"), [("bot", "layers"), ("bot/venue", "venue-layers"), ("bot/runtime", "runtime-layers")]
)
def test_the_map_of_a_package_lists_the_layers_of_its_contract(package: str, contract: str, repository: Path) -> None:
    """Modules beside the folders of the daemon are described in sentences; the map lists its folders."""
    layers = layers_of(repository, contract)
    if package == "bot/runtime":
        layers = [name for name in layers if (repository / package / name).is_dir()]
    assert map_of(repository / package / "__init__.py") == layers


CONFIG = """
account: {base_url: embedded}
state_dir: state
strategies_dir: STRATEGIES
dead_man: null
strategies:
  - {name: s, use: trend, markets: [BTC], interval: 1m, budget_usd: 500}
"""
CALL = "from bot.cli.app import call; call(sys.argv[1].split())"
# What a process does -> modules that it does not need. They cost from 15 to 130 ms of CPU at each start.
NOT_NEEDED = {
    f"{CALL}; sys.argv status --config bot.yaml": (
        "asyncio",
        "attr",
        "bot.config.settings",
        "bot.service",
        "bot.venue",
        "bot.wire.base",
        "cryptography",
        "httpx",
        "pydantic",
        "rich",
        "sqlite_utils",
        "structlog",
    ),
    f"{CALL}; sys.argv check bot.yaml": (
        "attr",
        "bot.runtime.kernel.kernel",
        "bot.runtime.journal",
        "bot.service.state_machine",
        "bot.service.operations",
        "bot.venue.apply",
        "bot.wire.events",
        "bot.wire.market",
        "cryptography",
        "httpx",
        "rich",
        "sqlite_utils",
        "structlog",
    ),
    "import bot.logs; bot.logs.configure(); bot.logs.log.info('x.seen')": ("attr", "rich"),
    "import bot.logs; bot.logs.configure(pretty=True); bot.logs.log.info('x.seen')": ("attr", "rich"),
    "import bot.service.host; bot.service.host.log.info('x.seen')": ("attr", "bot.runtime", "rich"),
    "import bot.runtime.daemon; bot.runtime.daemon.log.info('x.seen')": ("attr", "bot.service", "bot.venue", "rich"),
}


@pytest.mark.parametrize("work", NOT_NEEDED)
def test_a_process_imports_nothing_that_it_does_not_need(work: str, tmp_path: Path, repository: Path) -> None:
    (tmp_path / "bot.yaml").write_text(CONFIG.replace("STRATEGIES", str(repository / "strategies")))
    code, _, arguments = work.partition("; sys.argv ")
    program = (
        f"import sys, bot.cli; bot.cli.spare_imports(); {code}; print('loaded', *(one for one in sys.modules if"
        " sys.modules[one]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded"
    assert [name for name in NOT_NEEDED[work] if any(f"{one}.".startswith(f"{name}.") for one in loaded)] == []
