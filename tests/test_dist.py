"""A release: equal bytes from equal commits, a list of what is in it, its notes, and a forge that does the same."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from ruamel.yaml import YAML

from tests import dist
from tests.documents import ROOT

EPOCH_S = 1_700_000_000
CHANGELOG = """\
# Changelog

## [Unreleased]: 0.2.0

- new

## [0.1.0] - 2026-01-01

- old
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return dist.build(ROOT, tmp_path_factory.mktemp("dist"), EPOCH_S)


def test_a_release_is_a_wheel_and_an_sdist_of_the_version(built: list[Path]) -> None:
    from bot import __version__

    assert [path.name for path in built] == [
        f"bracketbot-{__version__}-py3-none-any.whl",
        f"bracketbot-{__version__}.tar.gz",
    ]


def test_builds_that_differ_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_time = "import sys, os, pathlib; pathlib.Path(sys.argv[1], 'a.whl').write_text(str(os.stat('LICENSE').st_mtime))"
    monkeypatch.setattr(dist, "BUILD", by_time)
    with pytest.raises(dist.DistError, match=r"two builds differ in a\.whl"):
        dist.build(ROOT, tmp_path, EPOCH_S)
    assert not list(tmp_path.iterdir()), "nothing of it is left"


def test_the_list_of_packages_holds_the_pins_and_their_digests_and_is_the_same_each_time(built: list[Path]) -> None:
    pins = (ROOT / "requirements.txt").read_text()
    text = dist.sbom("0.1.0", built[0], pins, EPOCH_S)
    assert text == dist.sbom("0.1.0", built[0], pins, EPOCH_S)
    document = json.loads(text)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", SchemaVersion.V1_6.to_version())
    assert document["metadata"]["component"]["hashes"][0]["content"] == dist.digest(built[0])
    named = {part["name"]: part for part in document["components"]}
    assert named.keys() == {name for name, _ in dist.pinned(pins)}
    assert named.keys() >= {"httpx", "uvicorn", "jinja2"}
    assert all(part["purl"].startswith("pkg:pypi/") and part["hashes"] for part in named.values())


@pytest.mark.parametrize(("version", "text"), [("0.2.0", "- new"), ("0.1.0", "- old")])
def test_the_notes_are_the_section_of_the_version(version: str, text: str) -> None:
    assert dist.release_notes(CHANGELOG, version) == f"# Bracketbot {version}\n\n{text}\n"


@pytest.mark.parametrize("version", ["0.3.0", "10.1.0", "0.1.00"])
def test_a_version_without_a_section_is_refused_with_what_to_add(version: str) -> None:
    with pytest.raises(dist.DistError, match=r'add a heading "## \['):
        dist.release_notes(CHANGELOG, version)


def test_the_time_of_a_build_is_the_given_one_else_that_of_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "7")
    assert dist.source_time(ROOT) == 7
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    committed = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, check=True)
    assert dist.source_time(ROOT) == int(committed.stdout)


def test_only_tracked_files_get_into_a_build(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path / "a")], check=True)
    for name in ("code.py", "secret.key"):
        (tmp_path / "a" / name).write_text(name)
    (tmp_path / "a" / "link").symlink_to("code.py")
    subprocess.run(["git", "add", "code.py", "link"], cwd=tmp_path / "a", check=True)
    dist.copy_tracked(tmp_path / "a", tmp_path / "b", at_s=EPOCH_S, mode=0o600)
    assert {path.name: path.is_symlink() for path in (tmp_path / "b").iterdir()} == {"code.py": False, "link": True}
    assert (tmp_path / "b" / "code.py").stat().st_mtime == EPOCH_S


def test_the_release_of_a_forge_runs_make_dist_and_attests_what_it_made() -> None:
    (job,) = YAML(typ="safe").load(ROOT / ".github" / "workflows" / "release.yml")["jobs"].values()
    steps = job["steps"]
    assert "make dist" in [step.get("run") for step in steps]
    uses = [step["uses"].partition("@")[0] for step in steps if "uses" in step]
    assert uses[-2:] == ["actions/attest-build-provenance", "actions/attest-sbom"]
    assert job["permissions"] == {"contents": "write", "id-token": "write", "attestations": "write"}
    made = Path(dist.__file__).read_text()
    attested = [value for step in steps for value in step.get("with", {}).values() if str(value).startswith("dist/")]
    assert all(name == "*.whl" or f'"{name}"' in made for name in (Path(value).name for value in attested))


def test_an_interpreter_that_is_too_old_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not dist.UV.exists():
        pytest.skip("uv is not in .tools: run `make test`")
    old = tmp_path / ".pyenv" / "versions" / "3.10.1" / "bin" / "python"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 3 10 99\n")
    old.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.defpath)
    assert str(old) not in dist.pythons(())
    assert dist.pythons(("mine",)) == ["mine"]
