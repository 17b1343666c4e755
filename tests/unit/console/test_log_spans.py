"""Spans of a log: which transactions are committed, aborted or open, from what was read of them."""

from __future__ import annotations

from oncelog.console.log_spans import Batch, batch_of, spans, states
from oncelog.protocol.records import Record, build_batch, build_control_batch, parse_header


def batch(first: int, last: int, producer: int, kind: str = "", aborted: bool | None = None) -> Batch:
    return Batch(first, last, producer, 0, kind, last - first + 1, 100, 0, aborted)


def outcomes(batches: list[Batch], open_from: dict[int, int] | None = None) -> list[str]:
    return [state for _, state in states(batches, open_from or {})]


def test_marker_after_a_batch_decides() -> None:
    read = [batch(0, 1, 7), batch(2, 3, 8), batch(4, 4, 8, "abort marker"), batch(5, 5, 7, "commit marker")]
    assert outcomes(read) == ["committed", "aborted", "abort marker", "commit marker"]


def test_marker_of_an_earlier_transaction_does_not_decide_a_later_one() -> None:
    read = [
        batch(0, 0, 7),
        batch(1, 1, 7, "commit marker"),
        batch(2, 2, 7),
        batch(3, 3, 7, "abort marker"),
        batch(4, 4, 7),
    ]
    assert outcomes(read, {7: 4}) == ["committed", "commit marker", "aborted", "abort marker", "open"]


def test_list_of_aborted_transactions_decides_before_a_marker_is_read() -> None:
    assert outcomes([batch(0, 1, 7, aborted=True), batch(2, 3, 8, aborted=False)]) == ["aborted", "committed"]


def test_batch_without_a_marker_is_open_only_if_its_producer_has_an_open_transaction() -> None:
    assert outcomes([batch(4, 5, 7), batch(6, 6, 8)], {7: 4, 8: 9}) == ["open", "ended"]


def test_neighbours_in_the_same_state_are_one_span_but_markers_are_not() -> None:
    read = [batch(0, 1, 7), batch(2, 2, 7), batch(3, 3, 7, "commit marker"), batch(4, 4, 8, "commit marker")]
    read += [batch(5, 5, -1, "plain"), batch(6, 8, 9, "plain"), batch(10, 10, -1, "plain")]
    assert [(span.first, span.last, span.records) for span in spans(read, {})] == [
        (0, 2, 3),
        (3, 3, 1),
        (4, 4, 1),
        (5, 8, 4),
        (10, 10, 1),
    ]


def test_batches_of_a_response_are_recognized() -> None:
    data = build_batch([Record(0, 5, None, b"v")], producer_id=3, producer_epoch=1, base_sequence=0, transactional=True)
    found = batch_of(parse_header(data), memoryview(data), True)
    assert (found.kind, found.aborted, found.producer_id) == ("", True, 3)
    marker = build_control_batch(True, producer_id=3, producer_epoch=1, coordinator_epoch=0, timestamp=5)
    assert batch_of(parse_header(marker), memoryview(marker), False).kind == "commit marker"
    plain = build_batch([Record(0, 5, None, b"v")])
    assert batch_of(parse_header(plain), memoryview(plain), None).kind == "plain"
