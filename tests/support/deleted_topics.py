"""Members whose topic is deleted and created again: steps and checks for both group protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncelog import Admin, Consumer, Producer
from support.processes import wait_until
from support.servers import Server


def write(server: Server, topic: str, *values: bytes) -> None:
    """Send these values, and wait until they are stored."""
    with Producer(server.bootstrap) as producer:
        for value in values:
            producer.send(topic, value).result(30)


def take(consumer: Consumer, count: int) -> list[bytes | None]:
    """Poll until there are so many records. Return their values in order."""
    found: list[bytes | None] = []

    def enough() -> bool:
        found.extend(record.value for record in consumer.poll(0.2))
        return len(found) >= count

    wait_until(enough, f"{count} records")
    return sorted(found, key=str)


def delete(admin: Admin, topic: str) -> None:
    """Delete a topic, and wait until it is not listed."""
    admin.delete_topics(topic)
    wait_until(lambda: topic not in admin.list_topics(), "the topic is deleted")


def two_topics(server: Server, admin: Admin, name: str) -> tuple[str, str]:
    """Create one topic with the record 1, and one with the records 2, 3 and 4."""
    kept, gone = f"{name}-kept", f"{name}-gone"
    admin.create_topics([kept, gone])
    write(server, kept, b"1")
    write(server, gone, b"2", b"3", b"4")
    return kept, gone


def drop_and_read_again(
    server: Server, admin: Admin, name: str, pattern: str | None, options: Mapping[str, Any]
) -> None:
    """Check that a member drops a deleted topic, commits the other one, and reads the topic that is created again."""
    kept, gone = two_topics(server, admin, name)
    with Consumer(server.bootstrap, group_id=name, **options) as consumer:
        consumer.subscribe(pattern or [kept, gone])
        assert take(consumer, 4) == [b"1", b"2", b"3", b"4"]
        consumer.commit()
        delete(admin, gone)
        wait_until(lambda: not consumer.poll(0.1) and consumer.assignment() == [(kept, 0)], "the partition is dropped")
        consumer.commit(timeout=5)
        write(server, kept, b"5")
        assert take(consumer, 1) == [b"5"]
        consumer.commit(timeout=5)
        assert admin.committed(name) == {(kept, 0): 2}
        admin.create_topics(gone)
        write(server, gone, b"6", b"7", b"8", b"9")
        assert take(consumer, 4) == [b"6", b"7", b"8", b"9"], "its offsets begin again"
        consumer.commit(timeout=5)
        assert admin.committed(name) == {(kept, 0): 2, (gone, 0): 4}


def start_again_at_new_topic(server: Server, admin: Admin, name: str, options: Mapping[str, Any]) -> None:
    """Check that the position of a deleted topic is not used for the topic of the same name."""
    kept, gone = two_topics(server, admin, name)
    with Consumer(server.bootstrap, group_id=name, **options) as consumer:
        consumer.subscribe([kept, gone])
        assert take(consumer, 4) == [b"1", b"2", b"3", b"4"]
        consumer.commit()
        delete(admin, gone)
        admin.create_topics(gone)
        new = [b"a", b"b", b"c", b"d", b"e"]
        write(server, gone, *new)
        assert take(consumer, 5) == new
        consumer.commit(timeout=5)
        assert admin.committed(name) == {(kept, 0): 1, (gone, 0): 5}
