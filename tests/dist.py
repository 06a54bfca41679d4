"""What a release consists of: `make dist`, which is `python -m tests.dist [--out FOLDER] [--python PYTHON ...]`.

It builds wheel and sdist twice, from two copies of the tracked files with other times and rights, and refuses builds
that differ. Then it writes a list of the pinned packages (SBOM in CycloneDX), the digests, and the notes of the version
from CHANGELOG.md. Last it installs the wheel into an empty environment of each Python of this machine that the package
allows, and runs the demo there in an empty folder. Installing needs the package registry or its cache.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.hash.factories import HashTypeFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

REPOSITORY = Path(__file__).resolve().parents[1]
UV = REPOSITORY / ".tools" / "bin" / "uv"
WAIT_S = 600
# The Pythons on which a release is tried.
MINORS = range(11, 15)
STOP = re.compile(r"^\S+ +stop .*armed at ")
DEMO = ("demo", "--for", "20s")
BUILD = "import sys, uv_build; uv_build.build_wheel(sys.argv[1]); uv_build.build_sdist(sys.argv[1])"


class DistError(Exception):
    """The release cannot be made. The text says why and what to do."""


def source_time(repository: Path) -> int:
    """SOURCE_DATE_EPOCH, else the time of the newest commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if given.isascii() and given.isdigit():
        return int(given)
    done = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=repository, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def copy_tracked(repository: Path, folder: Path, *, at_s: int, mode: int) -> None:
    """Copy the files that git tracks, links as links, with this time and these rights."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, target = repository / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target, follow_symlinks=False)
        if not target.is_symlink():
            target.chmod(mode)
        os.utime(target, (at_s, at_s), follow_symlinks=False)


def build(repository: Path, out: Path, epoch_s: int) -> list[Path]:
    """Wheel and sdist, built twice. DistError if a second build has other bytes."""
    with tempfile.TemporaryDirectory(prefix="bot-dist-") as place:
        digests: list[dict[str, str]] = []
        for number, (at_s, mode) in enumerate(((epoch_s, 0o644), (epoch_s - 86_400, 0o600))):
            tree, built = Path(place, f"tree{number}"), Path(place, f"built{number}")
            copy_tracked(repository, tree, at_s=at_s, mode=mode)
            built.mkdir()
            environ = os.environ | {
                "SOURCE_DATE_EPOCH": str(epoch_s),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            }
            subprocess.run([sys.executable, "-c", BUILD, str(built)], cwd=tree, env=environ, check=True, timeout=WAIT_S)
            digests.append({path.name: digest(path) for path in built.iterdir()})
        differ = sorted(name for name in digests[0] if digests[0][name] != digests[1].get(name))
        if differ:
            raise DistError(f"two builds differ in {', '.join(differ)}: something in them depends on time or rights")
        out.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(path, out / path.name)) for path in sorted(built.iterdir())]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pinned(text: str) -> Mapping[tuple[str, str], list[str]]:
    """Name and version of each pin -> the digests of its files."""
    rows: dict[tuple[str, str], list[str]] = {}
    for line in text.splitlines():
        if pin := re.match(r"([a-z0-9._-]+)==(\S+)", line):
            digests = rows[pin[1], pin[2]] = []
        elif line.startswith("    --hash=sha256:"):
            digests.append(line.strip(" \\").removeprefix("--hash=sha256:"))
    return rows


def sbom(version: str, wheel: Path, pins: str, epoch_s: int) -> str:
    """The wheel and its pinned packages as CycloneDX JSON, the same bytes for the same input."""
    package = Component(
        name="bracketbot",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref="bracketbot",
        purl=PackageURL("pypi", name="bracketbot", version=version),
        hashes=[HashTypeFactory().from_composite_str(f"sha256:{digest(wheel)}")],
    )
    components = [
        Component(
            name=name,
            version=pin,
            bom_ref=f"{name}=={pin}",
            purl=PackageURL("pypi", name=name, version=pin),
            hashes=[HashTypeFactory().from_composite_str(f"sha256:{one}") for one in digests],
        )
        for (name, pin), digests in pinned(pins).items()
    ]
    bom = Bom(components=components, serial_number=uuid5(NAMESPACE_URL, digest(wheel)))
    bom.metadata.timestamp = datetime.fromtimestamp(epoch_s, UTC)
    bom.metadata.component = package
    bom.register_dependency(package, components)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def release_notes(changelog: str, version: str) -> str:
    """The section of a version, which may still be called unreleased. DistError if there is none."""
    for part in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        if re.search(rf"(?<![\d.]){re.escape(version)}(?![\d.])", heading):
            return f"# Bracketbot {version}\n\n{text.strip()}\n"
    raise DistError(f'CHANGELOG.md has no section of {version}: add a heading "## [{version}]" with what has changed')


def pythons(given: Sequence[str]) -> list[str]:
    """The interpreters to try: those that were given, else the newest of each version that this machine has."""
    if given:
        return list(given)
    listed = subprocess.run(
        [UV, "python", "list", "--only-installed", "--no-python-downloads", "--output-format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    newest: dict[int, tuple[int, str]] = {}
    others = [str(path) for path in Path.home().glob(".pyenv/versions/3.*/bin/python")]
    for path in [*(row["path"] for row in json.loads(listed.stdout)), *others]:
        code = "import sys; print(*sys.version_info[:3])"
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        numbers = [int(word) for word in done.stdout.split()] if done.returncode == 0 else []
        if numbers[:1] == [3] and numbers[1] in MINORS and numbers[2] >= newest.get(numbers[1], (-1, ""))[0]:
            newest[numbers[1]] = numbers[2], path
    return [path for _, (_, path) in sorted(newest.items())]


def check(wheel: Path, python: str, arguments: Sequence[str] = DEMO) -> str:
    """Install the wheel alone into an empty environment and run `bot` in an empty folder; how long that took.

    DistError if the command fails.
    """
    with tempfile.TemporaryDirectory(prefix="bot-dist-") as place:
        environment, home = Path(place, "environment"), Path(place, "h")
        home.mkdir()
        began = time.monotonic()
        subprocess.run([UV, "venv", "--quiet", "--python", python, environment], check=True, timeout=WAIT_S)
        interpreter = environment / "bin" / "python"
        install = [UV, "pip", "install", "--quiet", "--python", interpreter, wheel.resolve()]
        subprocess.run(install, check=True, timeout=WAIT_S)
        environ = {"PATH": f"{environment / 'bin'}:{os.defpath}", "HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        installed, said, protected = time.monotonic(), "", ""
        with subprocess.Popen(
            [environment / "bin" / "bot", *arguments],
            cwd=home,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                said += line
                if not protected and STOP.search(line):
                    protected = f"; first trade with its stop after {time.monotonic() - installed:.0f} s more"
        if process.returncode:
            raise DistError(
                f"bot {' '.join(arguments)} under {python} ended with {process.returncode}:\n{said[-2_000:]}"
            )
        return f"installed in {installed - began:.0f} s{protected or '; no trade'}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dist", description="Build and check a release.")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "dist", help="Folder of the files.")
    parser.add_argument("--python", action="append", default=[], help="Try this interpreter only; repeatable.")
    given = parser.parse_args(arguments)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version, epoch_s = project["version"], source_time(REPOSITORY)
    try:
        notes = release_notes((REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), version)
        files = build(REPOSITORY, given.out, epoch_s)
        (wheel,) = [path for path in files if path.suffix == ".whl"]
        pins = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8")
        files.append(given.out / "bracketbot.cdx.json")
        files[-1].write_text(sbom(version, wheel, pins, epoch_s), encoding="utf-8")
        (given.out / "RELEASE_NOTES.md").write_text(notes, encoding="utf-8")
        sums = "".join(f"{digest(path)}  {path.name}\n" for path in files)
        (given.out / "SHA256SUMS").write_text(sums, encoding="utf-8")
        print(sums, end="")
        for python in pythons(given.python):
            print(f"{python}: {check(wheel, python)}; load {os.getloadavg()[0]:.0f}", flush=True)
    except DistError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
