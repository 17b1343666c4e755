"""Stories of a producer whose requests fail: retries, acknowledgements, order."""

from __future__ import annotations

from typing import Any

from oncelog import Producer, errors
from oncelog.stories.stage import Outcome, Stage, judged

QUICK: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 10, "retry_backoff_max_ms": 50}
VALUES = ["0", "1", "2"]


def sent(stage: Stage, rule: str, **options: Any) -> str:
    """Send three records, one after the other, while a fault happens. Return their topic."""
    topic = stage.topic()
    with (
        stage.faults(rule) as faults,
        Producer(faults.bootstrap_servers, **QUICK, **options) as producer,
    ):
        for value in VALUES:
            producer.send(topic, value).result()
    return topic


def lost_answer(stage: Stage, cure: bool) -> Outcome:
    """The broker has the record, but its answer is lost. The producer sends the record again.

    An idempotent producer numbers its records, so the broker recognizes the second copy.
    """
    topic = sent(stage, "lose-answer Produce:2", enable_idempotence=cure)
    return stage.verdict(topic, VALUES)


def no_retry(stage: Stage, cure: bool) -> Outcome:
    """The leader has just moved, so the broker rejects a record. Without a retry, the record is lost.

    The producer repeats it by default, and idempotence makes that safe.
    """
    topic = stage.topic()
    options = QUICK if cure else {**QUICK, "retries": 0, "enable_idempotence": False}
    with (
        stage.faults("error Produce:2 code=NOT_LEADER_OR_FOLLOWER") as faults,
        Producer(faults.bootstrap_servers, **options) as producer,
    ):
        for value in VALUES:
            try:
                producer.send(topic, value).result()
            except errors.KafkaError as error:
                stage.say(f"the producer gives up {value}: {error.code.name}")
    return stage.verdict(topic, VALUES)


def no_acknowledgement(stage: Stage, cure: bool) -> Outcome:
    """With acks=0, the producer does not wait for an answer, so it does not notice that a request is lost.

    With acks=all, it notices, and sends the record again.
    """
    topic = sent(stage, "lose-request Produce:2", acks="all" if cure else 0, enable_idempotence=cure)
    return stage.verdict(topic, VALUES)


def late_error(stage: Stage, cure: bool) -> Outcome:
    """The leader has the record, but too few followers do, so the answer is an error. The producer sends it again.

    The error does not mean that the record is not in the log. Idempotence makes the retry safe.
    """
    rule = "error-after Produce:2 code=NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    topic = sent(stage, rule, enable_idempotence=cure)
    return stage.verdict(topic, VALUES)


def ignored_error(stage: Stage, cure: bool) -> Outcome:
    """A record is too large, so no retry helps. A program that ignores the error loses it.

    The cure is up to the program: it keeps what cannot be sent, here in a topic of its own.
    """
    topic, rejected = stage.topic(max_message_bytes=200), stage.topic()
    values = ["0", "large " * 100, "2"]
    with Producer(stage.bootstrap, **QUICK) as producer:
        for value in values:
            try:
                producer.send(topic, value).result()
            except errors.RecordTooLargeError as error:
                stage.say(f"rejected: {error.code.name}")
                if cure:
                    producer.send(rejected, value).result()
    found = [*stage.values(topic), *stage.values(rejected)]
    stage.say(f"records in the topic and beside it: {len(found)} of {len(values)}")
    return Outcome(sorted(found) == sorted(values), "nothing is lost" if cure else "lost: the large record")


def overtaken(stage: Stage, cure: bool) -> Outcome:
    """Several batches are on their way when the first one fails. Its retry arrives behind the others.

    With sequence numbers, the broker rejects the others until the first one is there.
    """
    return _one_of_several_fails(stage, cure, failing=2)


def requeued(stage: Stage, cure: bool) -> Outcome:
    """The second of several batches fails, while the later ones are on their way.

    The idempotent producer puts it back into its queue by sequence, before the later ones.
    """
    return _one_of_several_fails(stage, cure, failing=3)


def _one_of_several_fails(stage: Stage, cure: bool, *, failing: int) -> Outcome:
    topic = stage.topic()
    values = ["first", "1", "2", "3", "4", "5"]
    options: dict[str, Any] = {"linger_ms": 0, "batch_size": 1, "retry_backoff_ms": 500}
    with (
        stage.faults(f"error Produce:{failing} code=NOT_LEADER_OR_FOLLOWER for=500ms") as faults,
        Producer(faults.bootstrap_servers, enable_idempotence=cure, **options) as producer,
    ):
        producer.send(topic, values[0]).result()
        for value in values[1:]:
            producer.send(topic, value)
    return stage.verdict(topic, values)


def several_producers(stage: Stage, cure: bool) -> Outcome:
    """Two producers write to one partition. Their records are mixed: there is an order within each of them only.

    This is a limit, and no setting changes it. If the order of all records matters, one producer has to write them.
    """
    topic = stage.topic()
    values = ["a0", "a1", "a2", "b0", "b1", "b2"]
    with Producer(stage.bootstrap, **QUICK) as one, Producer(stage.bootstrap, **QUICK) as two:
        if cure:
            for value in values:
                one.send(topic, value).result()
        else:
            for first, second in zip(values[:3], values[3:], strict=True):
                one.send(topic, first).result()
                two.send(topic, second).result()
    return stage.verdict(topic, values)


def everybody_removes_duplicates(stage: Stage, cure: bool) -> Outcome:
    """A duplicate in a topic has to be removed by each of its readers, each with a memory of all ids.

    An idempotent producer writes none, so the readers have nothing to do.
    """
    topic = sent(stage, "lose-answer Produce:2", enable_idempotence=cure)
    removed = 0
    for reader in ("one", "two"):
        known: set[str] = set()
        for value in stage.values(topic):
            removed += value in known
            known.add(value)
        assert judged(VALUES, sorted(known)).right
        stage.say(f"reader {reader} remembers {len(known)} ids")
    return Outcome(removed == 0, f"the readers had to remove {removed} duplicates")
