"""The files that a test depends on: a change of one of them is detected, and no change of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.imported_files import SourceTree

TREE = {
    "src/oncelog/__init__.py": "from oncelog.version import V\nif TYPE_CHECKING:\n    from oncelog.client import C\n"
    "def __getattr__(name):\n    return import_module(f'oncelog.{name}')",
    "src/oncelog/version.py": "",
    "src/oncelog/client.py": "import aiokafka.errors",
    "src/oncelog/wire/__init__.py": "def later():\n    import oncelog.client",
    "src/oncelog/wire/codec.py": "from oncelog.wire import tables, other",
    "src/oncelog/wire/tables.py": "",
    "src/oncelog/wire/apis.py": "import importlib\nimportlib.import_module(f'oncelog.messages.{name}')",
    "src/oncelog/wire/names.py": "from importlib import import_module\nimport_module(name)",
    "src/oncelog/messages/fetch.py": "",
    "src/oncelog/messages/produce.py": "",
    "src/oncelog/cli/main.py": "from oncelog.broker import broker",
    "src/oncelog/broker/broker.py": "",
    "tests/conftest.py": "from support.fixtures import f",
    "tests/support/fixtures.py": "import support.servers",
    "tests/support/servers.py": "import subprocess",
    "tests/support/lazy.py": "def f():\n    from oncelog.version import V",
    "tests/support/programs.py": "import subprocess",
    "tests/clients/conftest.py": "",
    "tests/features/conftest.py": "from oncelog import Client",
    "README.md": "",
    "examples/flights/a.py": "",
    "examples/b.txt": "",
}
ALWAYS = {"tests/conftest.py", "tests/support/fixtures.py", "tests/support/servers.py", "tests/clients/conftest.py"}
PACKAGE = {"src/oncelog/__init__.py", "src/oncelog/version.py"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", set()),
        ("from support import lazy", {"tests/support/lazy.py", *PACKAGE}),
        ("import oncelog.wire.tables", {"src/oncelog/wire/tables.py", "src/oncelog/wire/__init__.py", *PACKAGE}),
        ("def f():\n    import oncelog.version", PACKAGE),
        ("if TYPE_CHECKING:\n    import oncelog.client", set()),
        ("if TYPE_CHECKING:\n    import oncelog.client\nelse:\n    import oncelog.version", PACKAGE),
        ("from oncelog import Client", {"src/oncelog/client.py", *PACKAGE}),
        ("from .conftest import x", set()),
        ("from ..support.lazy import x", {"tests/support/lazy.py", *PACKAGE}),
        ("open('README.md')", {"README.md"}),
        ("root / 'examples'", {"examples/flights/a.py", "examples/b.txt"}),
        ("'../README.md', '/', '.', 'a/../README.md', 'no such file'", set()),
    ],
)
def test_file_depends_on_what_it_imports_and_names(tmp_path: Path, text: str, found: set[str]) -> None:
    assert closure(tmp_path, text) - ALWAYS == found


def test_names_from_a_package_bring_the_modules_of_that_package(tmp_path: Path) -> None:
    wire = {"src/oncelog/wire/__init__.py", *PACKAGE}
    both = {"src/oncelog/wire/codec.py", "src/oncelog/wire/tables.py", "src/oncelog/client.py"}
    assert closure(tmp_path, "import oncelog.wire.codec") - ALWAYS == wire | both


def test_modules_imported_by_a_computed_name_count(tmp_path: Path) -> None:
    messages = {"src/oncelog/messages/fetch.py", "src/oncelog/messages/produce.py"}
    found = closure(tmp_path, "import oncelog.wire.apis")
    assert messages <= found
    assert "src/oncelog/client.py" not in found
    whole = {name for name in TREE if name.startswith("src/oncelog/wire/")}
    assert whole <= closure(tmp_path, "import oncelog.wire.names")


def test_test_process_may_run_all_but_the_broker(tmp_path: Path) -> None:
    found = closure(tmp_path, "import support.programs")
    assert {"src/oncelog/cli/main.py", "src/oncelog/client.py"} <= found
    assert "src/oncelog/broker/broker.py" not in found
    assert "src/oncelog/broker/broker.py" in closure(tmp_path, "import subprocess, oncelog.broker.broker")


def test_other_packages_are_named(tmp_path: Path) -> None:
    make(tmp_path, "import oncelog.client, kafka.admin")
    found = SourceTree(tmp_path).closure(tmp_path / "tests/clients/test_it.py")
    assert {"aiokafka", "kafka"} <= found.others


def make(root: Path, text: str) -> None:
    for name, content in {**TREE, "tests/clients/test_it.py": text}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def closure(root: Path, text: str) -> set[str]:
    """Return the files that a test with this text depends on, without the test itself."""
    make(root, text)
    test = root / "tests" / "clients" / "test_it.py"
    return {path.relative_to(root).as_posix() for path in SourceTree(root).closure(test).files - {test}}
