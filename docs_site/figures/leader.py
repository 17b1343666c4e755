"""Draw how a leader checks the batches of an idempotent producer, and the results of a run."""

from __future__ import annotations

from typing import NamedTuple

from docs_site import svg
from oncelog.stories.stage import SMALL
from oncelog.stories.wire import RawProducer, Session
from oncelog.testing.broker import Broker

TOPIC = "payments"
OUT_OF_ORDER, OLD_EPOCH = "OUT_OF_ORDER_SEQUENCE_NUMBER", "INVALID_PRODUCER_EPOCH"
LEFT, WIDTH, HEIGHT, STEP, TOP = 20, 300, 40, 74, 44
ANSWER, RUN = 372, 640
"""The left edges of the columns of answers and of batches, in pixels."""


class Sent(NamedTuple):
    """A batch of one record, and the leader's answer: an offset or the name of an error."""

    epoch: int
    sequence: int
    answer: str

    def __str__(self) -> str:
        answer = f"offset {self.answer}" if self.answer.isdecimal() else "rejected"
        return f"epoch {self.epoch}, sequence {self.sequence}: {answer}"


class Check(NamedTuple):
    """A check of the leader, its answer if the check applies, and the batches of the run that show this."""

    question: str
    answer: str
    shown: tuple[int, ...]
    """Indexes in `BATCHES`."""


BATCHES = ((0, 0), (0, 0), (0, 2), *((0, number) for number in range(1, 7)), (0, 0), (1, 3), (1, 0), (0, 7))
"""The producer epoch and the sequence of each batch, in the order of sending."""
CHECKS = (
    Check("one of the last five batches?", "the offset that it has", (1,)),
    Check("an older epoch?", OLD_EPOCH, (12,)),
    Check("a new epoch, but not sequence 0?", OUT_OF_ORDER, (10,)),
    Check("known, but not the next sequence?", OUT_OF_ORDER, (2, 9)),
)
"""The checks, in the order of the code: `Admission.find_duplicate`, then `ProducerAppend.append_data`."""
APPENDED = (0, 3, 11)
"""Indexes in `BATCHES` of appended batches that the figure shows."""


def run() -> list[Sent]:
    """Send the batches to a broker. Return them with the answers."""
    with Broker(SMALL, topics=[TOPIC]) as broker, RawProducer(broker.bootstrap_servers) as producer:
        first = producer.session()
        sessions = {0: first, 1: Session(first.producer_id, 1)}
        return [
            Sent(epoch, sequence, producer.send(TOPIC, "x", sessions[epoch], sequence)) for epoch, sequence in BATCHES
        ]


def leader_checks() -> str:
    """Return the figure. Each batch of the run is beside the check that decided about it."""
    sent = run()
    parts = [
        svg.label(16, 26, "A batch of an idempotent producer at the leader of its partition", kind="title"),
        svg.label(RUN, 26, f"{len(BATCHES)} batches of one run, in their order", kind="small"),
    ]
    y = float(TOP)
    for check in CHECKS:
        parts += [*_box(LEFT, y, WIDTH, check.question), *_right(y, "yes"), *_down(y, "no")]
        parts += [svg.label(ANSWER, y + 25, check.answer), *_batches(sent, check.shown, y)]
        y += STEP
    for text, shown in (("appended: the leader remembers the batch", APPENDED), ("all in-sync replicas have it", ())):
        parts += [*_box(LEFT, y, WIDTH, text), *_down(y, ""), *_batches(sent, shown, y)]
        y += STEP
    parts += _box(LEFT, y, WIDTH, "answer: the offset")
    return svg.document(RUN + 240, y + HEIGHT + 16, parts, "The leader's checks of a batch")


def _box(x: float, y: float, width: float, text: str) -> list[str]:
    box = f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="8"/>'
    return [box, svg.label(x + width / 2, y + 25, text, anchor="middle")]


def _right(y: float, text: str) -> list[str]:
    start, end, middle = LEFT + WIDTH, ANSWER - 8, y + HEIGHT / 2
    return [svg.line(start, middle, end, middle), svg.label((start + end) / 2, middle - 6, text, anchor="middle")]


def _down(y: float, text: str) -> list[str]:
    x = LEFT + WIDTH / 2
    return [svg.line(x, y + HEIGHT, x, y + STEP), svg.label(x + 8, y + HEIGHT + 21, text)]


def _batches(sent: list[Sent], indexes: tuple[int, ...], y: float) -> list[str]:
    top = y + 25 - 8 * (len(indexes) - 1)
    texts = [f"{index + 1}. {sent[index]}" for index in indexes]
    return [svg.label(RUN, top + 16 * row, text, kind="small") for row, text in enumerate(texts)]
