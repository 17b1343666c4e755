"""The demo's comparison finds lost, duplicated and wrong rows."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "flights"

EXPECTED = pd.DataFrame({"id": [0, 1, 2, 3], "delay": [1.0, None, 3.0, 4.0], "origin": ["JFK", "JFK", "LGA", None]})


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLE)
    return importlib.import_module("check")


@pytest.mark.parametrize(
    ("found", "result"),
    [
        (EXPECTED, (4, 4, 0, 0, 0)),
        (EXPECTED[::-1], (4, 4, 0, 0, 0)),
        (EXPECTED[1:], (4, 3, 1, 0, 0)),
        (pd.concat([EXPECTED, EXPECTED[:2]]), (4, 6, 0, 2, 0)),
        (EXPECTED.assign(delay=[1.0, 2.0, 3.0, 4.0]), (4, 4, 0, 0, 1)),
        (EXPECTED.assign(id=[0, 1, 2, 9]), (4, 4, 1, 0, 1)),
    ],
    ids=["same", "in another order", "lost", "doubled", "different", "a stranger"],
)
def test_compare_counts_lost_and_duplicated_rows(
    check: ModuleType, found: pd.DataFrame, result: tuple[int, ...]
) -> None:
    compared = check.compare("topic", found.reset_index(drop=True), EXPECTED, ["id"])
    assert compared[1:] == result
    assert compared.right == (result == (4, 4, 0, 0, 0))


def test_rows_round_trip(check: ModuleType) -> None:
    data = importlib.import_module("data")
    some = data.flights().iloc[::5000]
    back = data.rows(data.messages(some)["value"], some)
    assert check.compare("topic", back, some.reset_index(drop=True), ["id"]).right


def test_every_flight_is_expected_once(check: ModuleType) -> None:
    data = importlib.import_module("data")
    assert len(data.flights()) == len(data.expected_joined()) == 336_776
    assert data.expected_joined()["id"].is_unique
    assert not data.expected_delays().duplicated(["origin", "hour"]).any()
