"""Find the files that a test file depends on: what it imports, directly and through others, and the files it names.

An import counts wherever it is in a file, but not under `if TYPE_CHECKING`, because that one never runs. Importing a
module also runs the packages above it: their files count, with what they import when they are imported. A package that
loads names on demand lists these imports under `if TYPE_CHECKING`, so they count if a file imports a name from it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("src", "tests")
"""Folders below the root that Python imports modules from."""

STARTS_SERVERS = frozenset({"support.apache_kafka", "support.processes", "support.servers"})
"""Modules that start the servers under test, or a process that another module describes."""

STARTS_PROCESSES = re.compile(r"\b(?:subprocess|ManagedProcess)\b")
"""Text in a module that may start any of our programs: the module depends on the whole package, without SERVER_ONLY."""

SERVER_ONLY = frozenset({"broker", "cluster", "coordinator", "log", "sim"})
"""Packages that only our broker runs; the control does not start it."""


class Imports(NamedTuple):
    """What one file imports: our modules, other packages, and prefixes of modules with a computed name."""

    ours: frozenset[str]
    others: frozenset[str]
    prefixes: frozenset[str]


class Closure(NamedTuple):
    """All that a file depends on: our files, and the names of the other packages that these import."""

    files: frozenset[Path]
    others: frozenset[str]


def digest(closure: Closure, root: Path, tools: Sequence[str]) -> str:
    """Return the digest of files by name and content, and of `tools` (names with versions)."""
    parts = [f"{path.relative_to(root)} {sha256(path.read_bytes()).hexdigest()}" for path in sorted(closure.files)]
    return sha256("\n".join([*parts, *tools]).encode()).hexdigest()


class SourceTree:
    """The modules below FOLDERS of one checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, Path] = {}
        self._names: dict[Path, str] = {}
        for folder in FOLDERS:
            for path in sorted((root / folder).rglob("*.py")):
                parts = path.relative_to(root / folder).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                self.modules[name] = path
                self._names[path] = name
        self._parse = cache(lambda path: ast.parse(path.read_text(), str(path)))
        self._imports = cache(self._find_imports)

    def closure(self, path: Path, *, imports_only: bool = False) -> Closure:
        """Return what the test file `path` depends on, with the conftest of each folder above it.

        With `imports_only`, the tests need no conftest, and start none of our programs.
        """
        above = [folder / "conftest.py" for folder in path.parents if folder.is_relative_to(self.root / "tests")]
        above *= not imports_only
        todo = [self._names[each] for each in (path, *above) if each in self._names]
        found: set[str] = set()
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self._direct(name)
        if not imports_only and any(
            STARTS_PROCESSES.search(self.modules[name].read_text()) for name in found - STARTS_SERVERS
        ):
            source = self.root / "src"
            found |= {
                name
                for name, path in self.modules.items()
                if path.is_relative_to(source) and not SERVER_ONLY & set(name.split(".")[1:2])
            }
        parents = {parent for name in found for parent in self._parents(name)}
        others = {other for name in found for other in self._imports(name, on_import=False).others}
        paths = {self.modules[name] for name in found | parents}
        named = {each for name in found for each in self._named_files(self.modules[name])}
        return Closure(frozenset(paths | named), frozenset(others))

    def _direct(self, name: str) -> set[str]:
        imports = self._imports(name, on_import=False)
        found = set(imports.ours)
        found |= {each for each in self.modules if imports.prefixes and each.startswith(tuple(imports.prefixes))}
        for parent in self._parents(name):
            found |= self._imports(parent, on_import=True).ours
        return found

    def _parents(self, name: str) -> Iterator[str]:
        """Return the packages above `name` that have a file."""
        while name := name.rpartition(".")[0]:
            if name in self.modules:
                yield name

    def _find_imports(self, name: str, *, on_import: bool) -> Imports:
        """Find the imports of a module: those that run when it is imported, or all that may ever run."""
        path = self.modules[name]
        is_package = path.name == "__init__.py"
        package = name if is_package else name.rpartition(".")[0]
        ours: set[str] = set()
        others: set[str] = set()
        prefixes: set[str] = set()
        for node in _running(self._parse(path), for_types=is_package and not on_import, on_import=on_import):
            for wanted in _wanted(node, package):
                known = next((each for each in wanted if each in self.modules), None)
                if known:
                    ours.add(known)
                else:
                    others.add(wanted[0].partition(".")[0])
            prefixes |= _computed(node, package)
        # If a package imports by a computed name, its imports under TYPE_CHECKING say which modules these are.
        return Imports(frozenset(ours - {name}), frozenset(others), frozenset(() if is_package else prefixes))

    def _named_files(self, path: Path) -> Iterator[Path]:
        """Find the files that a test names in a string, relative to the root; of a folder, all files."""
        if not path.is_relative_to(self.root / "tests"):
            return
        for node in ast.walk(self._parse(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from _existing(self.root, node.value)


def _existing(root: Path, name: str) -> Iterable[Path]:
    if not re.fullmatch(r"\w[\w./-]{0,200}", name) or ".." in name:
        return []
    path = root / name
    if path.is_file():
        return [path]
    return (each for each in path.rglob("*") if each.is_file() and "__pycache__" not in each.parts)


def _running(tree: ast.AST, *, for_types: bool, on_import: bool) -> Iterator[ast.AST]:
    """Walk the nodes that run: without the bodies of functions if `on_import`, without imports for types by default."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if on_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not for_types:
            todo += node.orelse
        else:
            todo += ast.iter_child_nodes(node)


def _wanted(node: ast.AST, package: str) -> list[tuple[str, ...]]:
    """Return what an import names: for each name, the modules that it may be, the most likely first."""
    if isinstance(node, ast.Import):
        return [(alias.name,) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        return [(f"{module}.{alias.name}", module) for alias in node.names]
    return []


def _computed(node: ast.AST, package: str) -> set[str]:
    """Return the prefix of the modules that `import_module` may import; if it is unknown, the module's own package."""
    if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")):
        return set()
    argument = node.args[0]
    if isinstance(argument, ast.JoinedStr) and isinstance(argument.values[0], ast.Constant):
        return {str(argument.values[0].value)}
    return {f"{package}."}
