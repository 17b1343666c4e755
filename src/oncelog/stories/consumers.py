"""Stories of a consumer that dies, hangs or seeks between its two writes: the output and its position."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from oncelog import Consumer, Producer, errors
from oncelog.client.types import ConsumerRecord
from oncelog.stories.orders import ORDERS, Died, filled, lives, orders, reader
from oncelog.stories.stage import Outcome, Stage, judged

DIES_AT = b"1"
"""The order at which the first process dies."""


def died_before_commit(stage: Stage, cure: bool) -> Outcome:
    """A service writes an order into its database, and dies before it has committed its position. It does so again.

    Cure: the position is in the same database, and changes in the same transaction as the order.
    """
    topic = filled(stage)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute("create table orders (number text)")
        database.execute("create table position (next integer)")
        database.execute("insert into position values (0)")

        def serve(dies: bool) -> None:
            with reader(stage, topic) as consumer:
                if cure:
                    consumer.seek(topic, 0, database.execute("select next from position").fetchone()[0])
                for record in orders(consumer, topic):
                    database.execute("begin")
                    database.execute("insert into orders values (?)", [(record.value or b"").decode()])
                    database.execute("update position set next = ?", [record.offset + 1])
                    database.execute("commit")
                    if dies and record.value == DIES_AT:
                        raise Died
                    consumer.commit()

        lives(stage, "the service", serve)
        found = [row[0] for row in database.execute("select number from orders order by rowid")]
    stage.say(f"in the database: {' '.join(found)}")
    return judged(ORDERS, found)


def offset_first(stage: Stage, cure: bool) -> Outcome:
    """A program copies orders to another topic. It commits its position first, and dies before the copy.

    Cure: position and copy are in one transaction.
    """
    return _copied(stage, cure, offset_first=True)


def output_first(stage: Stage, cure: bool) -> Outcome:
    """A program copies orders to another topic. It dies after the copy, before it has committed its position.

    Cure: position and copy are in one transaction.
    """
    return _copied(stage, cure, offset_first=False)


def _copied(stage: Stage, cure: bool, *, offset_first: bool) -> Outcome:
    topic, copies = filled(stage), stage.topic()

    def send(producer: Producer, value: bytes | None) -> None:
        producer.send(copies, value).result()

    def copy(dies: bool) -> None:
        options: dict[str, Any] = {"transactional_id": copies} if cure else {}
        with Producer(stage.bootstrap, **options) as producer, reader(stage, topic) as consumer:
            for record in orders(consumer, topic):
                value = record.value
                here = dies and value == DIES_AT
                if cure:
                    with producer.transaction() as transaction:
                        transaction.send(copies, value)
                        if here:
                            raise Died
                        transaction.send_offsets(consumer)
                    continue
                steps: list[Callable[[], object]] = [consumer.commit, partial(send, producer, value)]
                for step in steps if offset_first else reversed(steps):
                    step()
                    if here:
                        raise Died

    lives(stage, "the program", copy)
    return stage.verdict(copies, ORDERS)


def seek_back(stage: Stage, cure: bool) -> Outcome:
    """An operator resets the position of a group, so the service gets all orders again.

    No broker can know that this is not wanted. The application has to remember what it has done, here by order number.
    """
    topic = filled(stage)
    done: list[str] = []
    with reader(stage, topic) as consumer:
        for _ in range(2):
            consumer.seek_to_beginning()
            stage.say("the position is at the beginning")
            for record in orders(consumer, topic):
                order = (record.value or b"").decode()
                if not (cure and order in done):
                    done.append(order)
    stage.say(f"done: {' '.join(done)}")
    return judged(ORDERS, done)


def zombie_consumer(stage: Stage, cure: bool) -> Outcome:
    """A consumer hangs, and its group gives its partition to another one. Then it wakes up, and copies the same orders.

    Cure: its offsets go into the transaction with its generation, which the coordinator rejects.
    """
    topic, copies = filled(stage), stage.topic()
    options: dict[str, Any] = {
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": stage.session_ms,
        "heartbeat_interval_ms": stage.session_ms // 5,
    }

    def copy(consumer: Consumer, records: list[ConsumerRecord], transactional_id: str) -> None:
        with Producer(stage.bootstrap, transactional_id=transactional_id) as producer:
            with producer.transaction() as transaction:
                for record in records:
                    transaction.send(copies, record.value)
                if cure:
                    transaction.send_offsets(consumer)
            if not cure:
                consumer.commit()

    with Consumer(stage.bootstrap, **options, max_poll_interval_ms=stage.session_ms) as hanging:
        hanging.subscribe([topic])
        records = hanging.poll(10)
        stage.say(f"one consumer has {len(records)} orders, and hangs")
        with Consumer(stage.bootstrap, **options) as other:
            other.subscribe([topic])
            copy(other, other.poll(30), f"{copies}-other")
            stage.say("the other consumer has copied them")
            try:
                copy(hanging, records, f"{copies}-hanging")
            except (errors.AbortableError, errors.GroupError) as error:
                stage.say(f"the first consumer wakes up, copies them, and gets {type(error).__name__}")
    return stage.verdict(copies, ORDERS)


def outside_state(stage: Stage, cure: bool) -> Outcome:
    """A service counts orders in memory of its own, in a transaction that is aborted. It counts them again.

    What is outside of the transaction does not go back with it. Cure: the count is a record in the same transaction.
    """
    topic, counts = filled(stage), stage.topic()
    total = 0
    with Producer(stage.bootstrap, transactional_id=counts) as producer, reader(stage, topic) as consumer:
        attempts = iter([False, True, True, True])
        done = 0
        while done < len(ORDERS):
            records = consumer.poll(10)
            try:
                with producer.transaction() as transaction:
                    new = (done if cure else total) + len(records)
                    if not cure:
                        total = new
                    transaction.send(counts, str(new))
                    transaction.send_offsets(consumer)
                    if not next(attempts):
                        raise Died
            except Died:
                stage.say("the transaction is aborted, and the consumer goes back")
                consumer.seek_to_committed()
                continue
            done += len(records)
    found = stage.values(counts)
    return Outcome(found == ["1", "2", "3"], f"the counts are {' '.join(found)}")
