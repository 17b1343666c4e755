"""Transactional ids of tasks, and prefixes."""

from __future__ import annotations

import pytest

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.names import TURNS, Attempt, check_prefix, is_task_id, task_id


def test_ids_can_be_parsed() -> None:
    made = task_id("p", 17, Attempt(200, 9, 10))
    assert made == "p/200/1/1.2"
    assert is_task_id("p", made)
    others = ("p", "p/1", "p2/0/0/0.0", "pp/0/0/0.0", "p/0/0/0.0/x", "q/p/0/0/0.0", "p/a/0/0.0", "p/0/0/0.0.1.1")
    for other in others:
        assert not is_task_id("p", other)


def test_task_attempt_has_a_bounded_number_of_ids_that_parse() -> None:
    made = {task_id("p", 3, Attempt(2, 1, 6), turn) for turn in range(TURNS)}
    assert len(made) == TURNS
    assert all(is_task_id("p", each) for each in made)
    assert made.isdisjoint(task_id("p", 3, Attempt(2, 2, 6), turn) for turn in range(TURNS))


@pytest.mark.parametrize("prefix", ["", "a/b", "a b", "ä", "x" * 201])
def test_invalid_prefixes(prefix: str) -> None:
    with pytest.raises(MisuseError, match="transactionalIdPrefix"):
        check_prefix(prefix)
