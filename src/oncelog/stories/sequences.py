"""Stories of sequence numbers, told with a producer that sends what it is told."""

from __future__ import annotations

from oncelog.stories.stage import Outcome, Stage
from oncelog.stories.wire import RawProducer

LAST = 2**31 - 1


def six_in_flight(stage: Stage, cure: bool) -> Outcome:
    """Six batches are on their way, and the answer to the first one is lost. The broker remembers five.

    So it cannot recognize the retry, and rejects it again and again. With five in flight, it recognizes each one.
    """
    topic = stage.topic()
    values = [str(number) for number in range(5 if cure else 6)]
    with RawProducer(stage.leader_address(topic)) as producer:
        who = producer.session()
        for sequence, value in enumerate(values):
            producer.send(topic, value, who, sequence)
        answers = [producer.send(topic, values[0], who, 0) for _ in range(3)]
    stage.say(f"{len(values)} batches are in the log; the first one is sent three times more: {', '.join(answers)}")
    if answers[0].isdecimal():
        stage.say(f"each answer is the offset of the first attempt, {answers[0]}, and nothing is appended")
    stage.say(f"in the log: {' '.join(stage.values(topic))}")
    recognized = answers == ["0"] * 3
    return Outcome(recognized, "a duplicate, with its offset" if recognized else "OUT_OF_ORDER_SEQUENCE_NUMBER")


def hole(stage: Stage, cure: bool) -> Outcome:
    """A batch expires before it was sent, but its sequence number is used. All later batches are rejected.

    Cure: the producer gets a new epoch, and counts from 0 again.
    """
    topic = stage.topic()
    with RawProducer(stage.leader_address(topic)) as producer:
        who = producer.session()
        producer.send(topic, "0", who, 0)
        stage.say("the batch with sequence 1 expires")
        if cure:
            who = who.next_epoch()
            stage.say(f"the producer has id {who.producer_id}, epoch {who.epoch} now")
        answers = [producer.send(topic, str(2 + number), who, (0 if cure else 2) + number) for number in range(2)]
    stage.say(f"the answers to the next batches, offsets or errors: {', '.join(answers)}")
    return stage.verdict(topic, ["0", "2", "3"])


def forgotten_producer(stage: Stage, cure: bool) -> Outcome:
    """The broker has lost what it knew of a producer, whose next batch has sequence 5. Any batch could be missing.

    A broker that knows nothing of a producer accepts any sequence, also if an earlier batch is lost. Cure (KIP-360):
    the producer raises its epoch, and begins at 0. Then a batch that is missing is noticed.
    """
    topic = stage.topic()
    with RawProducer(stage.leader_address(topic)) as producer:
        who = producer.session()
        if cure:
            who = who.next_epoch()
            answers = [producer.send(topic, "5", who, 0), producer.send(topic, "7", who, 2)]
        else:
            answers = [producer.send(topic, "6", who, 6), producer.send(topic, "7", who, 7)]
    stage.say(f"the answers, offsets or errors: {', '.join(answers)}")
    noticed = answers[1] == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    return Outcome(noticed, "the missing batch is noticed" if noticed else "lost: the batch 5, without an error")


def largest_sequence(stage: Stage, cure: bool) -> Outcome:
    """A producer has sent 2^31 records to a partition, and its sequence numbers are used up.

    If the producer stops counting, its next record has the number of the last one. The broker answers as for a
    duplicate, so the record is lost without an error. Cure: the number after 2^31-1 is 0.
    """
    topic = stage.topic()
    following = 0 if cure else LAST
    with RawProducer(stage.leader_address(topic)) as producer:
        who = producer.session()
        answers = [
            producer.send(topic, "last but one", who, LAST - 1),
            producer.send(topic, "last", who, LAST),
            producer.send(topic, "next", who, following),
        ]
    stage.say(f"sequences {LAST - 1}, {LAST}, {following} get the offsets {', '.join(answers)}")
    return stage.verdict(topic, ["last but one", "last", "next"])
