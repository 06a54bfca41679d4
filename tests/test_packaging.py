"""What others install works: the built wheel in an environment of its own, and the files of the container."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from bot.cli.app import COMMANDS
from tests.documents import EVERYTHING
from tests.environments import COPIES, DOCKERFILE, build_wheel, environment_of

ROOT = Path(__file__).resolve().parent.parent
ENVIRON = dict(re.findall(r"(\w+)=(\S+)", "".join(re.findall(r"^ENV .+$", DOCKERFILE, re.MULTILINE))))
(HEALTHCHECK,) = [json.loads(one) for one in re.findall(r"^HEALTHCHECK .*CMD (\[.+\])$", DOCKERFILE, re.MULTILINE)]
WAIT_S = 120


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    return environment_of(build_wheel(tmp_path), tmp_path / "env")


@pytest.fixture
def home() -> Iterator[Path]:
    """A home folder whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="bot-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_wheel_runs_the_demo_and_the_containers_health_check_sees_it(environment: Path, home: Path) -> None:
    places = dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"), str(home))
    environ = {**places, "PATH": f"{environment / 'bin'}:{os.defpath}"}

    def call(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=home, env=environ, capture_output=True, text=True, timeout=WAIT_S, check=False
        )

    with subprocess.Popen(
        ["bot", "demo"], cwd=home, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout is not None
        said = ""
        try:
            for line in demo.stdout:
                said += line
                if all(re.search(rf"bar +{market} ", said) for market in ("BTC", "ETH")):
                    break
            healthy = call(*HEALTHCHECK)
        finally:
            demo.send_signal(signal.SIGINT)
            said += demo.communicate(timeout=WAIT_S)[0]
    assert (demo.returncode, healthy.returncode) == (0, 0), said + healthy.stdout + healthy.stderr
    assert "strategy    trend on BTC" in said
    assert "strategy    reversion on ETH" in said
    assert "Traceback" not in said
    assert call(*HEALTHCHECK).returncode == 3
    listed = json.loads(call("bot", "strategies", "--json").stdout)["strategies"]
    assert {one["use"] for one in listed} == {"trend", "reversion"}
    assert [one["path"] for one in listed if not Path(one["path"]).is_relative_to(environment)] == []


# -- the container


def test_an_image_is_built_from_what_the_dockerfile_names_and_from_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == COPIES.keys()
    assert [source for source in COPIES if not (ROOT / source).exists()] == []


@pytest.fixture(scope="module")
def service() -> dict[str, Any]:
    services: dict[str, dict[str, Any]] = YAML(typ="safe").load(ROOT / "compose.yaml")["services"]
    return services["bot"]


def test_compose_keeps_the_state_runs_a_config_and_opens_nothing(service: dict[str, Any]) -> None:
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    (volume,) = re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.MULTILINE)
    (folder,) = re.findall(r"^WORKDIR (\S+)$", DOCKERFILE.rpartition("\nFROM ")[2], re.MULTILINE)
    assert int(user) > 0
    assert f"{ENVIRON['XDG_STATE_HOME']}/bot" == volume
    mounts = dict(one.split(":", 1) for one in service["volumes"])
    assert mounts.pop("state") == volume
    assert mounts == {f"./{name}": f"{folder}/{name}:ro" for name in ("configs", "strategies")}
    command, config = service["command"]
    assert command in COMMANDS
    assert (ROOT / config).is_file()
    assert "ports" not in service
    assert not any("=" in one for one in service["environment"]), "a value that is a secret"


def test_the_container_commands_of_the_docs_name_what_there_is() -> None:
    told = re.findall(r"^docker compose (.+?)(?: {2,}.*)?$", EVERYTHING, re.MULTILINE)
    assert [shlex.split(line)[0] for line in told] == ["up", "exec"]
    for line in told:
        if line.startswith("exec"):
            _, service, program, command, *_ = shlex.split(line)
            assert (service, program) == ("bot", "bot")
            assert command in COMMANDS


def test_an_example_of_the_package_that_stands_in_the_tree_too_is_a_link(repository: Path) -> None:
    examples = repository / "bot" / "examples"
    in_tree = {path.name: path for folder in ("configs", "strategies") for path in (repository / folder).iterdir()}
    twice = [path for path in examples.rglob("*") if path.name in in_tree and path.is_file()]
    assert len(twice) == 3
    assert [path.name for path in twice if not path.is_symlink() or path.resolve() != in_tree[path.name]] == []
