"""The figures show what happens in a new run, and the committed ones show the same."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

import pytest

from docs_site.build import WRITTEN
from docs_site.figures import leader, producer, replicas, transaction
from docs_site.figures.__main__ import FIGURES
from docs_site.figures.sequence import Arrow, Note, Row

IMAGES = WRITTEN / "images"
VARIES = r"\d+ ms$|producer id \d+"
"""Texts of a drawing that differ between runs. The order of independent steps does, too."""


def texts(drawing: str) -> Counter[str]:
    found = ElementTree.fromstring(drawing)
    words = ["".join(each.itertext()) for each in found.iter("{http://www.w3.org/2000/svg}text")]
    return Counter(word for word in words if not re.match(VARIES, word))


@pytest.mark.parametrize("name", sorted(FIGURES.keys() - {"replica-offsets", "transaction", "producer-flow"}))
def test_committed_figure_shows_what_a_new_run_shows(name: str) -> None:
    committed = (IMAGES / f"{name}.svg").read_text()
    assert texts(FIGURES[name]()) == texts(committed), f"draw it again: scripts/docs --figures {name}"


def in_the_log(rows: list[Row]) -> list[str]:
    return [row.text for row in rows if isinstance(row, Note) and row.lane == producer.LOG]


def test_lost_answer_doubles_a_record_without_idempotence_only() -> None:
    assert in_the_log(producer.lost_answer_rows(idempotence=False))[-1] == "in the log: 0 1 1 2"
    with_cure = producer.lost_answer_rows(idempotence=True)
    assert in_the_log(with_cure)[-1] == "in the log: 0 1 2"
    assert [row.text for row in with_cure if isinstance(row, Arrow) and row.lost] == ["offset 1"]
    assert "known: it is at offset 1" in [row.text for row in with_cure]


def test_client_queues_rejected_batches_again_by_sequence() -> None:
    rows = producer.client_flow_rows()
    again = [row.text for row in rows if row.text.startswith("queue again")]
    assert again == [f"queue again: sequence {number}" for number in (1, 2, 3)]
    drained = [row.text for row in rows if row.text.startswith("drain")]
    assert drained == [f"drain: sequence {number}" for number in range(4)]
    answers = [row.text for row in rows if row.text.startswith("offset")]
    assert answers == [f"offset {number} of record {number}" for number in range(4)]


def test_each_check_of_the_leader_gives_the_answer_that_is_drawn() -> None:
    sent = leader.run()
    for check in leader.CHECKS[1:]:
        assert {sent[index].answer for index in check.shown} == {check.answer}
    assert sent[leader.CHECKS[0].shown[0]].answer == sent[leader.APPENDED[0]].answer == "0"
    assert [each.answer for each in sent if each.answer.isdecimal()] == [*list("00123456"), "7"]


def test_transaction_takes_the_steps_of_the_documents() -> None:
    lanes, rows = transaction.transaction_rows()
    assert len(lanes) == 4
    steps = [(row.step, row.text.partition(" ")[0]) for row in rows if isinstance(row, Arrow) and row.step]
    assert Counter(steps) == Counter(
        {
            ("1", "FindCoordinator"): 2,
            ("2", "InitProducerId"): 1,
            ("4.1", "AddPartitionsToTxn"): 2,
            ("4.2", "Produce"): 2,
            ("4.3", "AddPartitionsToTxn"): 1,
            ("4.4", "TxnOffsetCommit"): 1,
            ("5.1", "EndTxn"): 1,
            ("5.2", "WriteTxnMarkers"): 2,
        }
    )
    states = [row.text.partition(",")[0].partition(":")[0] for row in rows if isinstance(row, Note)]
    assert [name for name in states if name[0].isupper()] == [
        "Empty", "Ongoing", "Ongoing", "Ongoing", "PrepareCommit", "CompleteCommit",
    ]  # fmt: skip
    assert len([row for row in rows if isinstance(row, Note) and "COMMIT at" in row.text]) == 3


def test_high_watermark_waits_for_a_stopped_follower_until_it_leaves_the_in_sync_replicas() -> None:
    found = replicas.run()
    ours, theirs = found.samples[found.leader], found.samples[found.stopped]
    during = [sample for sample in ours if found.stop_at < sample.at < found.resume_at]
    waiting = [sample for sample in during if sample.high_watermark < sample.log_end - 20]
    assert during[-1].high_watermark >= waiting[-1].log_end
    assert not [sample for sample in theirs if found.stop_at + 0.5 < sample.at < found.resume_at]
    assert theirs[-1].log_end > during[-1].log_end
    assert all(sample.high_watermark <= sample.log_end for sample in [*ours, *theirs])
    ElementTree.fromstring(replicas.drawing(found))
