"""The counts of foreign suites are pinned: a change fails, chance does not, and a changed control runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import suite_counts, suites
from support.suite_counts import OURS, check_counts, servers_to_run, summary
from support.suites import Outcomes

SERVER: Any = SimpleNamespace(name="oncelog-3", bootstrap="a:1,b:2")
ALL_PASS = {"m.test_a": "passed", "m.test_b": "passed", "m.test_c": "skipped"}


class Suite:
    """A suite whose runs have these outcomes, one after the other."""

    def __init__(self, *runs: Outcomes) -> None:
        self._runs = list(runs)
        self.calls: list[tuple[str, list[str]]] = []

    def __call__(self, address: str, only: Sequence[str]) -> Outcomes:
        self.calls.append((address, list(only)))
        return self._runs.pop(0) if len(self._runs) > 1 else self._runs[0]


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "counts.json"
    monkeypatch.setattr(suite_counts, "COUNTS", file)
    monkeypatch.setattr(suites, "CACHE", tmp_path)
    monkeypatch.delenv("ONCELOG_PIN", raising=False)
    file.write_text(json.dumps({"s": {"oncelog-3": summary(ALL_PASS)}}))
    return file


def check(monkeypatch: pytest.MonkeyPatch, suite: Suite) -> None:
    monkeypatch.setitem(suites.SUITES, "s", suite)
    check_counts("s", lambda _settings: SERVER)


@pytest.mark.usefixtures("counts")
def test_pinned_counts_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Suite(ALL_PASS)
    check(monkeypatch, suite)
    assert suite.calls == [("a:1", [])]


@pytest.mark.usefixtures("counts")
@pytest.mark.parametrize(
    "outcomes",
    [
        {**ALL_PASS, "m.test_a": "failed"},
        {**ALL_PASS, "m.test_a": "skipped"},
        {"m.test_a": "passed", "m.test_c": "skipped"},
        {**ALL_PASS, "m.test_d": "passed"},
        {},
    ],
)
def test_changed_counts_fail(monkeypatch: pytest.MonkeyPatch, outcomes: Outcomes) -> None:
    with pytest.raises(AssertionError, match=r"s on oncelog-3: .*, but counts\.json has"):
        check(monkeypatch, Suite(outcomes))


def test_pinned_failure_that_passes_fails(monkeypatch: pytest.MonkeyPatch, counts: Path) -> None:
    counts.write_text(json.dumps({"s": {"oncelog-3": summary({**ALL_PASS, "m.test_a": "failed"})}}))
    with pytest.raises(AssertionError, match=r"m\.test_a"):
        check(monkeypatch, Suite(ALL_PASS))


@pytest.mark.usefixtures("counts")
def test_unexpected_failure_runs_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Suite({**ALL_PASS, "m.test_b": "failed"}, {"m.test_b": "failed"}, {"m.test_b": "passed"})
    check(monkeypatch, suite)
    assert [only for _, only in suite.calls] == [[], ["m.test_b"], ["m.test_b"]]


@pytest.mark.parametrize("how", ["passed", "failed"])
def test_outcome_that_varies_does_not_count(monkeypatch: pytest.MonkeyPatch, counts: Path, how: str) -> None:
    counts.write_text(json.dumps({"s": {"oncelog-3": summary(ALL_PASS, ["m.test_a"])}}))
    suite = Suite({**ALL_PASS, "m.test_a": how})
    check(monkeypatch, suite)
    assert len(suite.calls) == 1


def test_pin_writes_counts(monkeypatch: pytest.MonkeyPatch, counts: Path) -> None:
    monkeypatch.setenv("ONCELOG_PIN", "1")
    check(monkeypatch, Suite({"m.test_a": "failed"}))
    assert json.loads(counts.read_text()) == {
        "s": {"oncelog-3": {"run": 1, "passed": 0, "skipped": 0, "failed": ["m.test_a"]}}
    }


def test_control_runs_only_if_its_inputs_changed(monkeypatch: pytest.MonkeyPatch, counts: Path) -> None:
    current = {
        server: {"digest": suite_counts.control_digest("franz-go", server)}
        for server in ("apache-kafka", "apache-kafka-3")
    }
    counts.write_text(json.dumps({"franz-go": current}))
    assert servers_to_run(["franz-go"]) == [*OURS]
    monkeypatch.setattr(suite_counts, "SETTINGS", {"num.partitions": "5"})
    assert servers_to_run(["franz-go"]) == ["apache-kafka", "apache-kafka-3", *OURS]
