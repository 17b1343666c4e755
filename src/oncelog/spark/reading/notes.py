"""Notes in the offsets that a stream returns to Spark: ids of topics, and where partitions start.

Of a Python source, Spark stores only the end of each batch in the checkpoint. So the end also contains what a restarted
query must know, as keys without partitions. Spark's Kafka connector and older versions of oncelog ignore such keys. No
topic can have their names:

    {"words": {"0": 40}, "words (id E1mGYR8tQ0e5tjXGpoLYEQ)": {}, "words (starts 0:17)": {}}

- The ids of the topics that have been read: a topic that was created again has another id.
- The start of each partition whose first batch this is. If the batch fails, its replay starts at the same offset, even
  if the options now select another one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from uuid import UUID

from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.reading.offsets import Flat, Offsets, nested

_ID = re.compile(r"([A-Za-z0-9._-]+) \(id ([A-Za-z0-9_-]{22})\)")
_STARTS = re.compile(r"([A-Za-z0-9._-]+) \(starts (\d+:\d+(?: \d+:\d+)*)\)")


def noted(offsets: Flat, ids: Mapping[str, UUID], starts: Flat | None = None) -> Offsets:
    """Return the form for the checkpoint: the offsets, and notes with the ids of their topics and with `starts`."""
    result = nested(offsets)
    notes = [f"{name} (id {shown_id(ids[name])})" for name in result if name in ids]
    for name, parts in nested(starts or {}).items():
        notes.append(f"{name} (starts {' '.join(f'{number}:{offset}' for number, offset in parts.items())})")
    return result | {note: {} for note in notes}


def ids_in(offsets: Offsets) -> dict[str, UUID]:
    """Return the ids of topics in the notes of a batch's end."""
    found = filter(None, map(_ID.fullmatch, offsets))
    return {match[1]: UUID(bytes=base64.urlsafe_b64decode(f"{match[2]}==")) for match in found}


def starts_in(offsets: Offsets) -> Flat:
    """Return the starts of the partitions whose first batch ends at these offsets."""
    pairs = [(m[1], pair.split(":")) for m in filter(None, map(_STARTS.fullmatch, offsets)) for pair in m[2].split()]
    return {TopicPartition(name, int(number)): int(offset) for name, (number, offset) in pairs}


def shown_id(topic_id: UUID) -> str:
    """Return an id as Kafka writes it."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
