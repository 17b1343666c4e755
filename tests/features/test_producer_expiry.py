"""I10: a producer that is idle for `producer.id.expiration.ms` expires. One whose records were deleted does not."""

from __future__ import annotations

from support.servers import OncelogCluster, Server
from support.transactions import ended, producers, written
from support.wire import Session, Wire, batch, code, until

OUT_OF_ORDER = code("OUT_OF_ORDER_SEQUENCE_NUMBER")
LONG_AGO = 1_600_000_000_000
EXPIRY_MS = 1500
SETTINGS = {
    "producer.id.expiration.ms": str(EXPIRY_MS),
    "producer.id.expiration.check.interval.ms": "50",
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "0",
}
"""Settings of the module's server."""


def known(wire: Wire, topic: str, who: Session) -> bool:
    return who.producer_id in producers(wire, topic)


def test_state_of_a_long_idle_producer_is_dropped(module_wire: Wire, name: str) -> None:
    wire = module_wire
    wire.create_topic(name)
    who = wire.session()
    wire.produce(name, batch([b"v"], who, 0))
    assert known(wire, name, who)
    assert wire.produce(name, batch([b"v"], who, 7)).error_code == OUT_OF_ORDER
    until(lambda: known(wire, name, who), lambda found: not found, "the producer has expired")
    assert wire.produce(name, batch([b"v"], who, 7)).base_offset == 1, "any first sequence is accepted"
    assert wire.produce(name, batch([b"v"], who, 9)).error_code == OUT_OF_ORDER


def test_marker_keeps_the_producer_state_alive(module_wire: Wire, name: str) -> None:
    """KAFKA-9144: by the timestamps of its data alone, the producer would have expired, and with it the
    coordinator's epoch.
    """
    wire = module_wire
    wire.create_topic(name)
    who = wire.session(name)
    data = batch([b"v"], who, 0, transactional=True, timestamp=LONG_AGO)
    until(
        lambda: wire.produce(name, data, transactional_id=name, version=12).error_code, lambda found: not found, "taken"
    )
    successor = ended(wire, name, who)
    state = until(lambda: producers(wire, name).get(who.producer_id), lambda found: found and found.producer_epoch, "")
    assert state is not None
    assert state.producer_epoch == successor.epoch
    assert state.last_timestamp > LONG_AGO + EXPIRY_MS
    until(lambda: known(wire, name, who), lambda found: not found, "the producer has expired")


def test_open_transaction_keeps_its_producer_state(module_wire: Wire, name: str) -> None:
    wire = module_wire
    wire.create_topic(name, 2)
    who, idle = wire.session(name), wire.session()
    data = batch([b"v"], who, 0, transactional=True, timestamp=LONG_AGO)
    until(
        lambda: wire.produce(name, data, transactional_id=name, version=12).error_code, lambda found: not found, "taken"
    )
    wire.produce(name, batch([b"v"], idle, 0))
    until(lambda: known(wire, name, idle), lambda found: not found, "the other producer has expired")
    assert producers(wire, name)[who.producer_id].current_txn_start_offset == 0
    ended(wire, name, who, False)


def test_old_record_timestamps_do_not_expire_the_producer(module_wire: Wire, module_server: Server, name: str) -> None:
    """DIFFERS: Kafka uses the records' timestamps, so a producer that loads old data expires between two batches."""
    wire = module_wire
    wire.create_topic(name)
    who, idle = wire.session(), wire.session()
    wire.produce(name, batch([b"v"], idle, 0))
    wire.produce(name, batch([b"v"], who, 0, timestamp=LONG_AGO))
    if not isinstance(module_server, OncelogCluster):
        until(lambda: known(wire, name, who), lambda found: not found, "it expires at once")
        return
    written_batches = 1

    def work() -> bool:
        nonlocal written_batches
        again = batch([b"v"], who, written_batches - 1, timestamp=LONG_AGO)
        assert wire.produce(name, again).base_offset == written_batches, "the last batch is remembered"
        written_batches += 1
        wire.produce(name, batch([b"v"], who, written_batches - 1, timestamp=LONG_AGO))
        return known(wire, name, idle)

    until(work, lambda found: not found, "the idle producer has expired")
    until(lambda: known(wire, name, who), lambda found: not found, "the producer expires when it is idle")


def test_retention_deletes_records_but_keeps_producer_state(module_wire: Wire, name: str) -> None:
    """KIP-360, KAFKA-7190."""
    wire = module_wire
    wire.create_topic(name, retention_ms="1000")
    who = wire.session(name)  # an open transaction prevents the expiry of its producer
    written(wire, name, who, name, [b"v"] * 2)
    ended(wire, name, who)
    successor = wire.session(name)
    written(wire, name, successor, name, [b"v"])
    start = until(lambda: wire.offset(name, -2), lambda offset: offset >= 3, "the first segment is deleted")
    assert producers(wire, name)[who.producer_id].last_sequence == 0
    answer = wire.produce(name, batch([b"v"], successor, 3, transactional=True), transactional_id=name)
    assert answer.error_code == OUT_OF_ORDER
    assert written(wire, name, successor, name, [b"v"], 1).base_offset >= start
    ended(wire, name, successor)
