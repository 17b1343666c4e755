"""Draw the figures of the producer: a lost answer, and how batches pass through the client."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from docs_site.figures.sequence import Arrow, Note, Row, drawing
from docs_site.figures.watch import ASSIGNED, Line, Sent, brokers_at_debug, clients_lines, requests_through
from oncelog import Producer
from oncelog.faults.proxy import FaultProxy
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.records import decode_records
from oncelog.stories.stage import SMALL
from oncelog.testing.broker import Broker

TOPIC = "payments"
PRODUCER, LEADER, LOG = "producer", "leader", "log of the partition"
PROGRAM, QUEUE, SENDER = "program", "queue of the partition", "sender"
DUPLICATE = re.compile(r"duplicate: sequences (\d+) to \d+ .* are at offsets (\d+)")


class Answer(NamedTuple):
    """An offset that the producer got for a record, and when."""

    at: float
    value: str
    offset: int


def lost_answer(*, idempotence: bool) -> str:
    """Return the figure of three records. The answer to the second one is lost, so the producer sends it again."""
    title = f"The answer to record 1 is lost, {'with' if idempotence else 'without'} idempotence"
    return drawing(title, (PRODUCER, LEADER, LOG), lost_answer_rows(idempotence=idempotence))


def lost_answer_rows(*, idempotence: bool) -> list[Row]:
    """Make the run, and return the rows of the figure."""
    options: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 20, "enable_idempotence": idempotence}
    answers: dict[str, Answer] = {}
    with (
        brokers_at_debug(),
        Broker(SMALL, topics=[TOPIC]) as broker,
        FaultProxy(broker.bootstrap_servers, "lose-answer Produce:2") as faults,
    ):
        sent = requests_through(faults)
        with Producer(faults.bootstrap_servers, **options) as producer:
            for value in "012":
                offset = producer.send(TOPIC, value).result().offset
                answers[value] = Answer(time.time(), value, offset)
        (lost,) = [request for request, _ in faults.made]
    # The broker has stopped, so all lines of its log are written.
    duplicates = {int(found[1]): int(found[2]) for found in DUPLICATE.finditer(broker.log())}
    return list(_lost_answer_rows([each for each in sent if each.request.batches], lost.number, answers, duplicates))


def _lost_answer_rows(
    sent: list[Sent], lost: int, answers: dict[str, Answer], duplicates: dict[int, int]
) -> Iterator[Row]:
    """Yield the requests, what the leader did with each one, and its answers.

    `duplicates` has the offsets of the first copies, by the sequences that the leader recognized as duplicates.
    """
    log: list[str] = []
    for each in sent:
        (record,), (batch,) = decode_records(each.request.records[0]), each.request.batches
        value = (record.value or b"").decode()
        number = "no sequence" if batch.base_sequence < 0 else f"sequence {batch.base_sequence}"
        yield Arrow(each.at, PRODUCER, LEADER, f"Produce: record {value}, {number}")
        is_lost = each.request.number == lost
        done = each.at if is_lost else answers[value].at
        if value in log and batch.base_sequence in duplicates:
            offset = duplicates[batch.base_sequence]
            yield Note(each.at, LEADER, f"known: it is at offset {offset}")
        else:
            offset = len(log)
            log.append(value)
            yield Note(each.at, LOG, f"record {value} at offset {offset}", wrong=log.count(value) > 1)
        yield Arrow(done, LEADER, PRODUCER, f"offset {offset}", lost=is_lost)
    offsets = [answer.offset for answer in answers.values()]
    assert offsets == [len(log) - 1 - log[::-1].index(value) for value in answers], (offsets, log)
    yield Note(answers["2"].at, LOG, f"in the log: {' '.join(log)}", wrong=len(set(log)) < len(log))


# -- the client -------------------------------------------------------------------------------------------------------

DRAINED = re.compile(rf"{TOPIC}-0, sequences (\d+) to \d+ of .*: drained")
QUEUED_AGAIN = re.compile(rf"{TOPIC}-0, sequences (\d+) to \d+ of .*: queued again, .*: ([A-Z_]+),")


def client_flow() -> str:
    """Return the figure of four batches in the producer. The leader rejects the second one once."""
    title = "Four batches through the idempotent producer. The second one is rejected once"
    return drawing(title, (PROGRAM, QUEUE, SENDER, LEADER), client_flow_rows())


def client_flow_rows() -> list[Row]:
    """Make the run, and return the rows of the figure."""
    rows: list[Row] = []
    options: dict[str, Any] = {"linger_ms": 0, "batch_size": 1, "retry_backoff_ms": 200}
    rule = "error Produce:2 code=NOT_LEADER_OR_FOLLOWER for=100ms"
    with (
        Broker(SMALL, topics=[TOPIC]) as broker,
        FaultProxy(broker.bootstrap_servers, rule) as faults,
        clients_lines() as lines,
    ):
        sent = requests_through(faults)
        with Producer(faults.bootstrap_servers, **options) as producer:

            def send(value: str) -> Any:
                rows.append(Arrow(time.time(), PROGRAM, QUEUE, f"send({value!r})"))
                future = producer.send(TOPIC, value)
                answered = "offset {} of record {}"
                future.add_done_callback(
                    lambda done: rows.append(
                        Arrow(time.time(), LEADER, PROGRAM, answered.format(done.result().offset, value))
                    )
                )
                return future

            send("0").result()
            for value in "123":
                send(value)
    rows += [row for each in sent if (row := _request_row(each))]
    rows += [row for line in lines for row in _line_rows(line)]
    return sorted(rows, key=lambda row: row.at)


def _request_row(sent: Sent) -> Arrow | None:
    request = sent.request
    if request.api is ApiKey.INIT_PRODUCER_ID:
        return Arrow(sent.at, SENDER, LEADER, "InitProducerId")
    if request.batches:
        return Arrow(sent.at, SENDER, LEADER, f"Produce: sequence {request.batches[0].base_sequence}")
    return None


def _line_rows(line: Line) -> Iterator[Row]:
    if found := ASSIGNED.search(line.text):
        yield Note(line.at, SENDER, f"producer id {found[1]}, epoch {found[2]}")
    elif found := DRAINED.search(line.text):
        yield Arrow(line.at, QUEUE, SENDER, f"drain: sequence {found[1]}")
    elif found := QUEUED_AGAIN.search(line.text):
        yield Arrow(line.at, LEADER, SENDER, found[2])
        yield Arrow(line.at, SENDER, QUEUE, f"queue again: sequence {found[1]}")
