"""Compile the hot modules with mypyc when a wheel is built.

The wheel has both the compiled modules and their Python source; Python prefers the compiled ones. The build falls back
to a wheel of pure Python if there is no C compiler, or if the compilation fails. `oncelog --version` reports which of
the two is installed, and why. An editable installation is always pure Python.

Environment variables: ONCELOG_PURE=1 compiles nothing. ONCELOG_COMPILED=1 fails the build instead of falling back, for
wheels that are published.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "broker/handlers/fetch.py",
    "broker/handlers/produce.py",
    "broker/requests/*.py",
    "cluster/commits.py",
    "cluster/leader.py",
    "cluster/replica.py",
    "cluster/topic_traffic.py",
    "cluster/waits.py",
    "log/**/*.py",
    "net/*.py",
    "protocol/*.py",
)
"""The modules to compile, relative to src/oncelog. Every record passes through them."""

NOT_COMPILED = (
    "**/__init__.py",
    "log/disk.py",  # only calls the system; the simulation and tests extend its classes
    "log/file_access.py",  # its error inherits from OSError
    "log/guarded_disk.py",  # its error inherits from OSError
    "log/snapshot.py",  # a test replaces a function that it calls
    "net/alerts.py",  # its classes extend those of Python's library
    "net/connection.py",  # only the client uses it; its errors inherit from OSError
    "net/coroutine_steps.py",  # `types.coroutine` accepts only generators of the interpreter
    "net/credentials.py",  # only reads settings
    "net/eager.py",  # `types.coroutine` accepts only generators of the interpreter
    "net/failures.py",  # its errors inherit from OSError
    "net/handshakes.py",  # only accepts connections; tests replace its limits
    "net/http_server.py",  # only metrics and health checks
    "net/http.py",  # its errors and connections extend classes of Python's library
    "net/oauth_server.py",  # only logins
    "net/ports.py",  # only binds and accepts
    "net/properties.py",  # only reads settings
    "net/sasl.py",  # only the client uses it
    "net/sasl_server.py",  # only logins
    "net/security.py",  # only the client uses it
    "net/session_renewal.py",  # only the client uses it
    "net/stalls.py",  # for debugging
    "net/threads.py",  # only the client uses it
    "net/tokens.py",  # only logins; tests replace its limits
    "net/tls_failures.py",  # only the client uses it
    "net/tls_checks.py",  # only checks changed files
    "net/tls_files.py",  # only reads files
    "net/traffic.py",  # only types
    "protocol/decoder.py",  # generates Python
    "protocol/encoder.py",  # generates Python
    "protocol/fields.py",  # has a metaclass
    "protocol/generated.py",  # generates Python
    "protocol/memory.py",  # only calls the system; tests replace what it calls
    "protocol/schema.py",  # has a metaclass
)
"""Exceptions from COMPILED: modules that mypyc cannot compile, or that gain nothing from it."""

REQUIRES = ("mypy>=2.4", "setuptools>=77")
MYPY = ("--config-file=", "--ignore-missing-imports", "--follow-imports=silent")
SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup

modules = mypycify(sys.argv[1].split(), opt_level="3", debug_level="0", group_name="oncelog")
setup(name="oncelog", packages=[], ext_modules=modules, script_args=["build_ext", "--build-lib", sys.argv[2]])
"""
FAILURE = "oncelog/not_compiled.txt"
"""A file in a wheel of pure Python that says why nothing was compiled. `oncelog.version` reads it."""


class CompileHook(BuildHookInterface):
    """Add compiled modules to a wheel."""

    def dependencies(self) -> list[str]:
        """Return the packages that the compilation needs. Return none if this build will not compile."""
        return list(REQUIRES) if self.target_name == "wheel" and not _reason_for_pure() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into a temporary folder, and add the result to the wheel."""
        if self.target_name != "wheel" or version == "editable":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="oncelog-build-"))
        reason = _reason_for_pure()
        if not reason:
            try:
                libraries = _compile(Path(self.root), self._folder)
            except CompilationError as error:
                reason = str(error)
        if not reason:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"].update(libraries)
            return
        if os.environ.get("ONCELOG_COMPILED") == "1":
            shutil.rmtree(self._folder, ignore_errors=True)
            raise RuntimeError(f"ONCELOG_COMPILED=1, but nothing was compiled: {reason}")
        self.app.display_warning(f"oncelog: nothing was compiled, so the wheel is pure Python: {reason}")
        note = self._folder / "reason"
        note.write_text(reason)
        build_data["force_include"][str(note)] = FAILURE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if self.target_name == "wheel" and version != "editable":
            shutil.rmtree(self._folder, ignore_errors=True)


class CompilationError(Exception):
    """Raised if mypyc or the C compiler fails."""


def modules(source: Path) -> list[str]:
    """Return the paths of the modules to compile, relative to the folder that contains the package."""
    package = source / "oncelog"
    chosen = {path for pattern in COMPILED for path in package.glob(pattern)}
    chosen -= {path for pattern in NOT_COMPILED for path in package.glob(pattern)}
    return sorted(path.relative_to(source).as_posix() for path in chosen)


def _reason_for_pure() -> str:
    """Return why this build cannot or must not compile, or an empty string if it can."""
    if os.environ.get("ONCELOG_PURE") == "1":
        return "the build ran with ONCELOG_PURE=1"
    if sys.implementation.name != "cpython":
        return f"mypyc needs CPython, and this is {sys.implementation.name}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "free-threaded Python is not supported"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"the build found no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the build found no header files of Python"
    return ""


def _compile(root: Path, folder: Path) -> dict[str, str]:
    """Compile a copy of the source, so that no file is written next to the source. Raises CompilationError.

    Return a dict from the path of each compiled file to its path in the wheel. Tracebacks show the paths that are
    passed to mypyc, so these are relative to the folder that contains the package.
    """
    shutil.copytree(root / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (folder / "setup.py").write_text(SETUP)
    arguments = " ".join([*MYPY, *modules(folder / "src")])
    command = [sys.executable, str(folder / "setup.py"), arguments, str(folder / "out")]
    done = subprocess.run(command, cwd=folder / "src", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    sys.stderr.write(done.stdout)
    if done.returncode:
        errors = [line.strip() for line in done.stdout.splitlines() if "error:" in line.lower()]
        raise CompilationError((errors or done.stdout.strip().splitlines() or ["no output"])[-1][:500])
    libraries = [path for path in (folder / "out").rglob("*") if path.is_file()]
    return {str(path): path.relative_to(folder / "out").as_posix() for path in libraries}
