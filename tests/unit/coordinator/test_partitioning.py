import pytest

from oncelog.coordinator.partitioning import java_string_hash, partition_for


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("a", 97), ("polygenelubricants", -(2**31)), ("Aa", 2112), ("BB", 2112), ("\U0001f600", 1772899)],
)
def test_hash_equals_javas(text: str, value: int) -> None:
    assert java_string_hash(text) == value


def test_partition_of_a_known_group() -> None:
    assert partition_for("console-consumer-77682", 50) == 41


def test_hash_without_a_positive_counterpart_counts_as_zero() -> None:
    assert partition_for("polygenelubricants", 50) == 0
