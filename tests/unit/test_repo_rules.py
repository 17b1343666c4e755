from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support import repo_rules


def test_repository_keeps_its_rules() -> None:
    broken = [str(finding) for finding in repo_rules.findings() if not finding.warning]
    assert not broken, "\n".join(broken)


def test_every_file_of_the_package_is_checked() -> None:
    looked_at = set(repo_rules.files())
    assert set(repo_rules.SOURCE.rglob("*.py")) <= looked_at
    assert len(looked_at) > 50


@pytest.mark.parametrize(
    ("name", "text", "caught"),
    [
        ("log/log.py", "import time", ["time"]),
        ("log/log.py", "def f():\n    from os.path import join", ["os"]),
        ("log/log.py", "import asyncio.events as e, struct", ["asyncio"]),
        ("log/disk.py", "import os", []),
        ("net/server.py", "import socket", []),
        ("broker/broker.py", "import asyncio, time", ["time"]),
        ("client/consumer/fetcher.py", "from .time import x", []),
        ("log/log.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio", []),
        ("log/log.py", "import typing\nif typing.TYPE_CHECKING:\n    import asyncio", []),
        ("log/log.py", "if TYPE_CHECKING:\n    import asyncio\nelse:\n    import os", ["os"]),
        ("log/log.py", "if TYPE_CHECKING:\n    import asyncio\nelif x:\n    import os", ["os"]),
        ("log/log.py", "if not TYPE_CHECKING:\n    import os", ["os"]),
    ],
)
def test_only_edges_perform_io(name: str, text: str, caught: list[str]) -> None:
    found = repo_rules.misplaced_imports(Path("/x") / name, ast.parse(text), Path("/x"))
    assert [finding.text.split()[1].rstrip(",") for finding in found] == caught


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("net/session.py", "class Session:\n    def mute(self, reason):\n        self.muted |= reason", []),
        ("net/session.py", "class Session:\n    def disconnected(self):\n        self.muted |= 1", [3]),
        ("net/server.py", "def mute(self):\n    self.session.muted = 0", [2]),
        ("net/server.py", "if self.session.muted & 1:\n    a, session.muted = 1, 2\n    del session.muted", [2, 3]),
    ],
)
def test_only_mute_and_unmute_change_why_a_session_is_muted(name: str, text: str, lines: list[int]) -> None:
    found = list(repo_rules.stray_changes(Path("/x") / name, ast.parse(text), Path("/x")))
    assert sorted(finding.line for finding in found) == lines
    assert all("call mute and unmute" in finding.text for finding in found)


CIRCLE = {"a.py": "from p import b", "b.py": "import p.c", "c.py": "from p.a import name"}


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ({"a.py": "from p import b", "b.py": "import p.c", "c.py": "import a, os"}, []),
        (CIRCLE, ["p.a -> p.b -> p.c -> p.a", "p.b -> p.c -> p.a -> p.b", "p.c -> p.a -> p.b -> p.c"]),
        (
            CIRCLE | {"d.py": "import p.a"},
            ["p.a -> p.b -> p.c -> p.a", "p.b -> p.c -> p.a -> p.b", "p.c -> p.a -> p.b -> p.c"],
        ),
        ({"a.py": "import p.a"}, ["p.a -> p.a"]),
        (
            {"a.py": "if TYPE_CHECKING:\n    import p.b", "b.py": "import p.a"},
            ["p.a -> p.b -> p.a", "p.b -> p.a -> p.b"],
        ),
        (
            {"a.py": "def f():\n    from p import b", "b.py": "import p.a"},
            ["p.a -> p.b -> p.a", "p.b -> p.a -> p.b"],
        ),
        ({"__init__.py": "from p.a import x", "a.py": "from p import y"}, ["p -> p.a -> p", "p.a -> p -> p.a"]),
        ({"__init__.py": "from p.a import x", "a.py": "from p import b", "b.py": ""}, []),
        ({"__init__.py": "import p.a", "a.py": "from p import b, y", "b.py": ""}, ["p -> p.a -> p", "p.a -> p -> p.a"]),
    ],
)
def test_modules_do_not_import_each_other_in_a_circle(modules: dict[str, str], found: list[str]) -> None:
    package = Path("/x/p")
    trees: dict[Path, ast.AST] = {package / name: ast.parse(text) for name, text in modules.items()}
    findings = repo_rules.import_circles(trees, package)
    assert [finding.text.removeprefix("imports itself: ") for finding in findings] == found


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("path = '/root/thing'", "a path of one machine"),
        ("@pytest.mark.skip", "a test that does not run"),
        ("    pytest.importorskip('x')", "a test that does not run"),
        ("# TODO: later", "an open task"),
        ("the /brokers/topics/home/ node", None),
        ("skip = todo['fixme']", None),
    ],
)
def test_forbidden_words(line: str, what: str | None) -> None:
    found = [finding.text.partition(":")[0] for finding in repo_rules.forbidden_text(Path("x"), line)]
    assert found == ([what] if what else [])


def test_budgets_warn() -> None:
    text = "def long():\n" + "    x = 1\n" * 60 + "def short():\n" + "    x = 1\n" * 59
    found = list(repo_rules.over_budget(Path("x"), ast.parse(text), text))
    assert [(finding.line, finding.warning) for finding in found] == [(1, True)]
    (module,) = repo_rules.over_budget(Path("x"), ast.parse(""), "\n" * 501)
    assert module.warning
    assert module.text.startswith("module of 501 lines")
