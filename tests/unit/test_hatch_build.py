"""The build hook: what it compiles, when it does not, and the reason in a wheel of pure Python."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from oncelog import version

ROOT = Path(__file__).parents[2]
INTERFACE = "hatchling.builders.hooks.plugin.interface"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module `hatch_build`, whose base class is a stub: hatchling is installed only for builds."""
    interface = ModuleType(INTERFACE)
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, INTERFACE, interface)
    for name in ("ONCELOG_PURE", "ONCELOG_COMPILED", "CC"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_build(hook: Any) -> tuple[Any, list[str], dict[str, Any]]:
    warnings: list[str] = []
    build = hook.CompileHook()
    build.root, build.target_name = str(ROOT), "wheel"
    build.app = SimpleNamespace(display_warning=warnings.append)
    return build, warnings, {"pure_python": True, "infer_tag": False, "force_include": {}}


def test_every_pattern_of_modules_matches_one(hook: Any) -> None:
    package = ROOT / "src" / "oncelog"
    for pattern in (*hook.COMPILED, *hook.NOT_COMPILED):
        assert list(package.glob(pattern)), pattern
    chosen = hook.modules(ROOT / "src")
    assert {"oncelog/log/log.py", "oncelog/net/frames.py", "oncelog/protocol/records.py"} <= set(chosen)
    assert "oncelog/protocol/schema.py" not in chosen


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("ONCELOG_PURE", "1", "the build ran with ONCELOG_PURE=1"),
        ("CC", "no-such-compiler -O2", "the build found no C compiler (no-such-compiler)"),
    ],
)
def test_wheel_is_pure_without_a_compiler_or_on_request_and_the_reason_is_logged(
    hook: Any, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)
    build, warnings, data = a_build(hook)
    assert build.dependencies() == []
    build.initialize("standard", data)
    assert (data["pure_python"], data["infer_tag"]) == (True, False)
    ((note, place),) = data["force_include"].items()
    assert place == hook.FAILURE == f"oncelog/{version.NOT_COMPILED}"
    assert reason in Path(note).read_text()
    assert reason in warnings[0]
    build.finalize("standard", data, "")
    assert not Path(note).exists()


def test_failed_compilation_falls_back_with_a_warning(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(root: Path, folder: Path) -> dict[str, str]:
        raise hook.CompilationError("log.c:1: error: no such thing")

    monkeypatch.setattr(hook, "_reason_for_pure", lambda: "")
    monkeypatch.setattr(hook, "_compile", failing)
    build, warnings, data = a_build(hook)
    build.initialize("standard", data)
    assert data["pure_python"]
    assert "log.c:1: error: no such thing" in warnings[0]
    build.finalize("standard", data, "")


def test_wheel_for_publication_is_never_pure(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCELOG_COMPILED", "1")
    monkeypatch.setenv("ONCELOG_PURE", "1")
    build, _, data = a_build(hook)
    with pytest.raises(RuntimeError, match="nothing was compiled: the build ran with ONCELOG_PURE=1"):
        build.initialize("standard", data)


def test_editable_installation_compiles_nothing(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "_compile", None)
    build, warnings, data = a_build(hook)
    build.initialize("editable", data)
    assert (data["force_include"], warnings) == ({}, [])
