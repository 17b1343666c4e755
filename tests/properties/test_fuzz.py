"""A few thousand damaged inputs for each decoder. `scripts/fuzz` runs a million."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from support.fuzzing import TARGETS, damaged, fuzz


@pytest.mark.parametrize("target", TARGETS)
def test_damage_raises_only_protocol_errors(target: str) -> None:
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    refused = fuzz(target, 3000, seed)
    assert 0 < refused < 3000  # some inputs are damaged, and not all of them are rejected at the first check


def test_memory_is_bounded() -> None:
    command = [sys.executable, "-m", "support.fuzzing", "--inputs", "6000"]
    tests = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no fault" in done.stdout


def test_fault_is_reported_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def target(chance: random.Random) -> tuple[bytes, object]:
        data = damaged(bytes(100), chance)
        return data, lambda: data[100]

    monkeypatch.setitem(TARGETS, "broken", target)
    with pytest.raises(AssertionError, match=r"broken, seed 5, input [0-9]+: IndexError"):
        fuzz("broken", 1000, 5)
