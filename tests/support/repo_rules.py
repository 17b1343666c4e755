"""Check the repository rules that no linter knows: imports, sizes, and forbidden words.

`python tests/support/repo_rules.py` prints every finding. The exit status is 1 if a rule is broken (budgets only warn).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "oncelog"

MAX_FUNCTION = 60
MAX_MODULE = 500

WORLD = frozenset({"asyncio", "socket", "time", "random", "os", "threading"})
"""Modules that do I/O: state machines get time, randomness and bytes as arguments instead."""

DRIVERS = (
    *("blocking", "calls", "guards", "statistics", "table_kernels", "connections/pool"),
    *(f"discovery/{name}" for name in ("cluster", "metadata", "retries", "slow_answers")),
    *("requests/broker_fanout", "requests/offsets"),
    *(f"producer/{name}" for name in ("blocking", "asynchronous", "core", "sender_loop", "buffer", "sender")),
    *(
        f"producer/{name}"
        for name in ("in_order", "coordinator_driver", "routes", "delivery", "tables", "markers", "resumed")
    ),
    *(f"consumer/{name}" for name in ("blocking", "asynchronous", "core", "background", "fetcher", "offset_fetcher")),
    *(f"consumer/{name}" for name in ("commits", "member", "classic_member", "consumer_member")),
    *("consumer/consumer_coordinator", "consumer/group_waits"),
    *(f"admin/{name}" for name in ("hanging", "topics", "transactions", "replica_offsets")),
    "serialization/registry",
)
"""The client's modules that turn its state machines into calls. The other modules decide, without I/O."""

EDGES = {
    "net/*": WORLD,
    "log/disk.py": WORLD,
    "cluster/store_sqlite.py": WORLD,
    "cluster/store_reader.py": frozenset({"os"}),
    "cluster/leases.py": WORLD,
    "cluster/wakes.py": frozenset({"socket"}),
    "columns/native.py": frozenset({"os"}),
    "faults/held.py": frozenset({"asyncio"}),
    "faults/link.py": frozenset({"asyncio"}),
    "faults/proxy.py": frozenset({"asyncio", "threading"}),
    "faults/streams.py": frozenset({"asyncio"}),
    "broker/process.py": WORLD,
    "broker/folder_locks.py": frozenset({"os", "time"}),
    "broker/service_manager.py": frozenset({"socket"}),
    "broker/vitals.py": frozenset({"asyncio", "socket"}),
    "broker/log_lines.py": frozenset({"os", "threading"}),
    "broker/resources.py": frozenset({"time"}),
    "broker/metrics/process.py": frozenset({"os", "time"}),
    "broker/broker.py": frozenset({"asyncio", "random"}),
    "broker/*": frozenset({"asyncio"}),
    **{f"client/{name}.py": WORLD for name in DRIVERS},
    "console/server.py": frozenset({"asyncio", "socket"}),
    "console/app.py": frozenset({"asyncio", "time"}),
    "console/events.py": frozenset({"asyncio"}),
    "console/model.py": frozenset({"asyncio"}),
    "console/watches.py": frozenset({"asyncio"}),
    "console/pages/*": frozenset({"asyncio"}),
    "spark/commit/*": frozenset(),
    "spark/*": WORLD,
    "cli/*": WORLD,
    "sim/*": WORLD,
    "testing/broker.py": WORLD,
    "testing/registry.py": frozenset({"threading", "time"}),
    "stories/*": WORLD,
    "watch/asking.py": frozenset({"asyncio"}),
    "watch/reader.py": frozenset({"asyncio", "time"}),
}
"""Which file (a pattern under src/oncelog, the first match counts) may import which of these modules."""

OWNED = {"muted": frozenset({("net/session.py", "__init__"), ("net/session.py", "mute"), ("net/session.py", "unmute")})}
"""Attribute -> the only functions that may change it, with their modules under src/oncelog."""

MADE = frozenset({"__pycache__", "node_modules", "target"})
"""Folders that builds create and git ignores."""

TEXT_FOLDERS = ("src", "tests", "docs_site", "conformance", "benchmarks", "examples", "scripts", ".ci")

FORBIDDEN_TEXT = {
    "a path of one machine": re.compile(r"(?<![\w.$}])/(?:work|root|home)/\w"),
    "a test that does not run": re.compile(r"\bmark\.(?:skip|skipif|xfail)\b|\bpytest\.(?:skip|xfail|importorskip)\("),
    "an open task": re.compile(r"\b(?:TODO|FIXME|XXX)\b"),
}


class Finding(NamedTuple):
    """Report one broken rule. A warning leaves the decision to a reviewer."""

    path: Path
    line: int
    text: str
    warning: bool = False

    def __str__(self) -> str:
        kind = "warning: " if self.warning else ""
        return f"{self.path.relative_to(ROOT)}:{self.line}: {kind}{self.text}"


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Return (line, top-level module) of every absolute import that runs, anywhere in the file."""
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body  # its `else` runs
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module.partition(".")[0]


def misplaced_imports(path: Path, tree: ast.AST, source: Path = SOURCE) -> Iterator[Finding]:
    """Return imports of WORLD's modules outside the edges."""
    name = path.relative_to(source).as_posix()
    allowed = next((modules for pattern, modules in EDGES.items() if fnmatch(name, pattern)), frozenset())
    for line, module in imported(tree):
        if module in WORLD - allowed:
            yield Finding(path, line, f"imports {module}, which only edges may import: take the value as an argument")


def stray_changes(path: Path, tree: ast.AST, source: Path = SOURCE) -> Iterator[Finding]:
    """Return the places that change an attribute of OWNED outside the methods that own it."""
    name = path.relative_to(source).as_posix()
    allowed = {
        id(target)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for target in ast.walk(function)
        if isinstance(target, ast.Attribute) and (name, function.name) in OWNED.get(target.attr, ())
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and node.attr in OWNED:
            owners = " and ".join(sorted(owner for _, owner in OWNED[node.attr] if owner != "__init__"))
            if id(node) not in allowed:
                yield Finding(path, node.lineno, f"changes {node.attr}: call {owners}")


def imports_between(trees: Mapping[Path, ast.AST], package: Path = SOURCE) -> dict[str, set[str]]:
    """Return the modules of `package` that each of its modules imports, also for types or inside a function."""
    names = {path: module_name(path, package) for path in trees}
    modules = set(names.values())
    graph: dict[str, set[str]] = {}
    for path, tree in trees.items():
        wanted: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):  # ruff rejects relative imports (TID252)
                submodules = {f"{node.module}.{alias.name}" for alias in node.names}
                wanted |= submodules & modules
                wanted |= {str(node.module)} if submodules - modules else set()
        graph[names[path]] = wanted & modules
    return graph


def module_name(path: Path, package: Path) -> str:
    """Return the dotted name under which Python imports the file `path` of `package`."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def shortest_circle(graph: Mapping[str, set[str]], start: str) -> list[str]:
    """Return the shortest chain of imports from `start` back to `start`, both ends included; empty if there is none."""
    came_from: dict[str, str] = {}
    layer = [start]
    while layer:
        following = []
        for module in layer:
            for imported_module in sorted(graph[module]):
                if imported_module == start:
                    chain = [start, module]
                    while chain[-1] != start:
                        chain.append(came_from[chain[-1]])
                    return chain[::-1]
                if imported_module not in came_from:
                    came_from[imported_module] = module
                    following.append(imported_module)
        layer = following
    return []


def import_circles(trees: Mapping[Path, ast.AST], package: Path = SOURCE) -> Iterator[Finding]:
    """Find each module that imports itself through others."""
    graph = imports_between(trees, package)
    for path in trees:
        chain = shortest_circle(graph, module_name(path, package))
        if chain:
            yield Finding(path, 1, f"imports itself: {' -> '.join(chain)}")


def over_budget(path: Path, tree: ast.AST, source: str) -> Iterator[Finding]:
    """Return functions and modules that are too long."""
    lines = source.count("\n")
    if lines > MAX_MODULE:
        yield Finding(path, 1, f"module of {lines} lines (budget {MAX_MODULE})", warning=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                text = f"{node.name}: {length} lines (budget {MAX_FUNCTION})"
                yield Finding(path, node.lineno, text, warning=True)


def forbidden_text(path: Path, text: str) -> Iterator[Finding]:
    """Return words that must not stay in the repository."""
    for number, line in enumerate(text.splitlines(), 1):
        for what, pattern in FORBIDDEN_TEXT.items():
            if pattern.search(line):
                yield Finding(path, number, f"{what}: {line.strip()[:80]}")


def files(folders: Iterable[str] = TEXT_FOLDERS) -> Iterator[Path]:
    """Return our text files below these folders, and those at the root."""
    yield from ROOT.glob("*.md")
    yield ROOT / "pyproject.toml"
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            inside = path.relative_to(ROOT / folder).parts
            if path.is_file() and not any(part.startswith(".") or part in MADE for part in inside):
                yield path


def findings() -> Iterator[Finding]:
    """Return all findings about the repository."""
    this = {Path(__file__).resolve(), ROOT / "tests" / "unit" / "test_repo_rules.py"}
    package: dict[Path, ast.AST] = {}
    for path in files():
        text = path.read_text(errors="replace")
        if path.resolve() not in this:
            yield from forbidden_text(path, text)
        if path.suffix == ".py":
            tree = ast.parse(text, str(path))
            yield from over_budget(path, tree, text)
            if SOURCE in path.parents:
                package[path] = tree
                yield from misplaced_imports(path, tree)
                yield from stray_changes(path, tree)
    yield from import_circles(package)


def main() -> int:
    """Print the findings. Return 1 if one of them is more than a warning."""
    found = list(findings())
    for finding in found:
        print(finding)
    return int(any(not finding.warning for finding in found))


if __name__ == "__main__":
    sys.exit(main())
