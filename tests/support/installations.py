"""Build oncelog's distributions, and install the wheel into environments that have nothing else.

An environment gets the packages that the wheel requires as symbolic links to those of the tests' own environment. So an
installation takes a second and needs no package index. pip still checks that every requirement is met.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def build(target: str, source: Path, folder: Path) -> Path:
    """Build the distribution `target` ("sdist", or "wheel" in pure Python) of the project in `source` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    _run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder], source, ONCELOG_PURE="1")
    (made,) = set(folder.iterdir()) - before
    return made


def described(wheel: Path) -> metadata.Distribution:
    """Return the distribution in the file `wheel`."""
    name, version, *_ = wheel.name.split("-")
    return metadata.PathDistribution(zipfile.Path(wheel, f"{name}-{version}.dist-info/"))


def required(distribution: metadata.Distribution, extras: Collection[str]) -> dict[str, metadata.Distribution]:
    """Return by name the installed packages that `distribution` with `extras` requires, directly or through others."""
    found: dict[str, metadata.Distribution] = {}
    visited = set()
    left = [(distribution, frozenset(extras))]
    while left:
        one, extras = left.pop()
        for text in one.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                continue
            name = canonicalize_name(requirement.name)
            found[name] = metadata.distribution(requirement.name)
            following = (name, frozenset(requirement.extras))
            if following not in visited:
                visited.add(following)
                left.append((found[name], following[1]))
    return found


class Installation:
    """An environment in `folder` that has the wheel with some extras, and the packages that these require."""

    def __init__(self, folder: Path, wheel: Path, *extras: str) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.oncelog = folder / "bin" / "oncelog"
        venv.create(folder, symlinks=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        for distribution in required(described(wheel), extras).values():
            tops = {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}
            for top in tops:
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
        wanted = f"{wheel}[{','.join(extras)}]" if extras else wheel
        pip: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "--isolated",
            "--disable-pip-version-check",
            "--python",
            self.python,
        ]
        _run([*pip, "install", "--quiet", "--no-index", wanted], folder)

    def run(self, program: str, *arguments: str) -> str:
        """Run the Python program and return what it prints. AssertionError with its errors if it fails."""
        return _run([self.python, "-c", program, *arguments], self.folder)

    def command(self, *arguments: str) -> str:
        """Run `oncelog` with `arguments` and return what it prints. AssertionError with its errors if it fails."""
        return _run([self.oncelog, *arguments], self.folder)


def _run(command: list[str | Path], folder: Path, **variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
