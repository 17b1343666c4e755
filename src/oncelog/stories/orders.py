"""A topic with three orders, and programs that read them: stories of processes that die begin with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from oncelog import Consumer, Producer
from oncelog.client.types import ConsumerRecord
from oncelog.stories.stage import Stage

ORDERS = ["0", "1", "2"]


class Died(Exception):  # noqa: N818 - it is the end of a process, not an error
    """The process has died at this point."""


def lives(stage: Stage, name: str, life: Callable[[bool], None]) -> None:
    """Run a process that dies, then its successor. `life` gets whether it has to die, and raises Died for that."""
    try:
        life(True)
    except Died:
        stage.say(f"{name} dies")
    life(False)


def filled(stage: Stage) -> str:
    """Create a topic with the orders, and return its name."""
    topic = stage.topic()
    with Producer(stage.bootstrap) as producer:
        for order in ORDERS:
            producer.send(topic, order)
    return topic


def reader(stage: Stage, topic: str) -> Consumer:
    """Return a consumer that reads one record at a time, from the position that its group has committed."""
    consumer = Consumer(
        stage.bootstrap, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=1,
        isolation_level="read_committed",
    )  # fmt: skip
    consumer.assign([(topic, 0)])
    return consumer


def orders(consumer: Consumer, topic: str) -> Iterator[ConsumerRecord]:
    """Read the orders from the consumer's position on, one by one."""
    while consumer.position(topic, 0) < len(ORDERS):
        yield from consumer.poll(10)
