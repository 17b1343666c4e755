"""Stories of a producer that dies, and of its successor: new producer ids, torn output, zombies, open transactions."""

from __future__ import annotations

from contextlib import suppress

from oncelog import Producer, errors
from oncelog.stories.orders import ORDERS, Died, filled, lives, orders, reader
from oncelog.stories.stage import Outcome, Stage, stable_and_end

PAIR = ["debit", "credit"]


def dead(producer: Producer) -> None:
    """Drop a producer that cannot reach its brokers any more, or is fenced."""
    with suppress(errors.OncelogError):
        producer.close(0)


def new_producer_id(stage: Stage, cure: bool) -> Outcome:
    """A program sends three records, and dies before it has noted that. Its successor sends them again.

    Idempotence ends with the process: the successor has another producer id. Cure: the program's position in its input
    is in the same transaction as the output.
    """
    topic, source = stage.topic(), filled(stage)

    def work(dies: bool) -> None:
        transactional_id = topic if cure else None
        with (
            Producer(stage.bootstrap, transactional_id=transactional_id) as producer,
            reader(stage, source) as consumer,
        ):
            for record in orders(consumer, source):
                if cure:
                    with producer.transaction() as transaction:
                        transaction.send(topic, record.value)
                        transaction.send_offsets(consumer)
                else:
                    producer.send(topic, record.value).result()
            if dies:
                raise Died
            consumer.commit()

    lives(stage, "the program", work)
    return stage.verdict(topic, ORDERS)


def torn_pair(stage: Stage, cure: bool) -> Outcome:
    """A transfer is two records in two partitions. The program dies between them, and readers see half of it.

    Cure: a transaction. Readers with read_committed see both records, or none.
    """
    topic = stage.topic(partitions=2)

    with stage.faults() as network:
        producer = Producer(network.bootstrap_servers, transactional_id=topic if cure else None)
        if cure:
            producer.begin_transaction()
        producer.send(topic, PAIR[0], partition=0).result()
    dead(producer)
    stage.say("the program dies between the two records")
    if cure:
        with Producer(stage.bootstrap, transactional_id=topic):
            stage.say("its successor has the same transactional id, so the coordinator aborts the open transaction")
    found = stage.values(topic)
    stage.say(f"readers see: {' '.join(found) or 'nothing'}")
    return Outcome(len(found) in (0, 2), "half of the transfer" if found else "nothing of the transfer")


def zombie_producer(stage: Stage, cure: bool) -> Outcome:
    """A process seems dead, and its successor writes the order. Then the process wakes up, and writes it, too.

    Cure: both have the same transactional id. The successor gets the next epoch, and brokers reject the former one.
    """
    topic = stage.topic()
    zombie = Producer(stage.bootstrap, transactional_id=topic if cure else f"{topic}-zombie")
    zombie.begin_transaction()
    zombie.send(topic, "before").result()
    stage.say("the first process hangs")
    with Producer(stage.bootstrap, transactional_id=topic) as successor:
        with successor.transaction():
            successor.send(topic, "order")
        try:
            zombie.send(topic, "order").result()
            zombie.commit_transaction()
        except (errors.AbortableError, errors.FatalError) as error:
            stage.say(f"the first process wakes up, and is fenced: {error.code.name}")
            stage.say("its transaction is aborted, so readers do not get its record 'before'")
        else:
            stage.say("the first process wakes up, and commits")
    dead(zombie)
    found = stage.values(topic)
    stage.say(f"in the log: {' '.join(found)}")
    return Outcome(found.count("order") == 1, f"the order is there {found.count('order')} times")


def open_transaction(stage: Stage, cure: bool) -> Outcome:
    """A producer dies in a transaction. Readers with read_committed get nothing behind it, until it times out.

    Cure: its successor has the same transactional id, so the coordinator aborts the transaction at once.
    """
    topic = stage.topic()
    with stage.faults() as network:
        producer = Producer(network.bootstrap_servers, transactional_id=topic, transaction_timeout_ms=600_000)
        producer.begin_transaction()
        producer.send(topic, "half").result()
    dead(producer)
    stage.say("the producer dies in its transaction")
    with Producer(stage.bootstrap) as other:
        other.send(topic, "from another producer").result()
    if cure:
        with Producer(stage.bootstrap, transactional_id=topic):
            stage.say("its successor has started")
    stable, end = stable_and_end(stage.bootstrap, topic)
    stage.say(f"last stable offset {stable}, high watermark {end}")
    return Outcome(stable == end, f"readers see the first {stable} of {end} offsets")
