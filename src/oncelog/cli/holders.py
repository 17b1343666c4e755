"""Find the open transaction that keeps a partition's last stable offset below its high watermark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncelog import errors
from oncelog.cli.common import moment, open_admin
from oncelog.cli.log_format import note
from oncelog.cli.txn import FINISHED, sink_prefix

if TYPE_CHECKING:
    from oncelog import Admin
    from oncelog.client.admin.topics import PartitionInfo

Holder = dict[str, Any]
"""`transactional_id`, `producer_id`, `state` and `since_ms`. A value is None if no coordinator knows it."""


def find_holders(admin: Admin, topic: str, partitions: Sequence[PartitionInfo]) -> dict[int, Holder]:
    """Return the transaction that holds back the LSO, per partition. Skip partitions whose leader returns an error."""
    producers: dict[int, int] = {}
    for item in partitions:
        if 0 <= item.last_stable_offset < item.high_watermark:
            try:
                known = admin.describe_producers(topic, item.partition)
            except errors.KafkaError:  # not authorized, not supported, or the leader has moved
                continue
            held = [each for each in known if each.transaction_start == item.last_stable_offset]
            if held:
                producers[item.partition] = held[0].producer_id
    known_to_coordinators = _transactions(admin, sorted(set(producers.values())))
    return {
        partition: known_to_coordinators.get(producer_id) or _holder(producer_id)
        for partition, producer_id in producers.items()
    }


def _transactions(admin: Admin, producer_ids: list[int]) -> dict[int, Holder]:
    """Return the transactions that the coordinators know, by producer id."""
    found: dict[int, Holder] = {}
    if not producer_ids:
        return found
    try:
        for listed in admin.list_transactions(producer_ids=producer_ids):
            holder = _holder(listed.producer_id, listed.transactional_id, listed.state)
            found[listed.producer_id] = holder
            started = admin.describe_transaction(listed.transactional_id).start_time
            holder["since_ms"] = started if started >= 0 else None
    except errors.KafkaError:  # keep what the coordinators returned before the error
        pass
    return found


def _holder(producer_id: int, transactional_id: str | None = None, state: str | None = None) -> Holder:
    return {
        "transactional_id": transactional_id,
        "producer_id": producer_id,
        "state": state,
        "since_ms": None,
    }


def note_open_transactions(bootstrap: str, topic: str, partitions: tuple[int, ...]) -> None:
    """Print which transactions keep read_committed from the last records of the topic, as `topic describe` does."""
    with suppress(errors.KafkaError), open_admin(bootstrap) as admin:  # the records have been printed
        (known,) = admin.describe_topics(topic)
        asked = [each for each in known.partitions if not partitions or each.partition in partitions]
        stable = {each.partition: each.last_stable_offset for each in asked}
        for partition, holder in find_holders(admin, topic, asked).items():
            note(sentence(topic, partition, stable[partition], holder))


def sentence(topic: str, partition: int, lso: int, holder: Holder) -> str:
    """Return the line that names the transaction and the command that shows more."""
    where = f"{topic}-{partition}: read_committed consumers wait at offset {lso} for "
    producer_id, transactional_id = holder["producer_id"], holder["transactional_id"]
    if transactional_id is None or holder["state"] in FINISHED:
        return (
            f"{where}a transaction of producer id {producer_id}, which no coordinator shows; "
            f"`oncelog txn find-hanging --topic {topic}` tells whether it hangs"
        )
    since = ""
    if holder["since_ms"] is not None:
        since = f" since {moment(holder['since_ms'])}"
    return (
        f"{where}the transaction of {transactional_id!r} (producer id {producer_id}, {holder['state']}{since}); "
        f"see `oncelog txn describe {transactional_id}`{_advice(transactional_id)}"
    )


def _advice(transactional_id: str) -> str:
    prefix = sink_prefix(transactional_id)
    return "" if prefix is None else f". If the Spark query has died, run `oncelog sink settle {prefix}`"
