"""Read a topic with our own consumer."""

from __future__ import annotations

from oncelog import Consumer


def read(bootstrap: str, topic: str, partitions: int = 1, *, committed: bool = True) -> list[bytes | None]:
    """Return all readable values, by partition and offset."""
    level = "read_committed" if committed else "read_uncommitted"
    with Consumer(bootstrap, auto_offset_reset="earliest", isolation_level=level) as consumer:
        assigned = [(topic, index) for index in range(partitions)]
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        found = []
        while any(consumer.position(*tp) < end for tp, end in ends.items()):
            found += consumer.poll(5)
        return [record.value for record in sorted(found, key=lambda record: record[1:3])]
