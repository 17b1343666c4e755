"""What a broker does by the clock: sync full segments and write checkpoints, drop old segments, forget producers, see
that its log directories are still there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from oncelog.cluster.replica import Replica
from oncelog.log.retention import apply_retention
from oncelog.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker

LOOK_MS = 1_000
"""How often. So long at most is acknowledged what goes to files that have no name any more."""


def start(broker: Broker) -> None:
    """Begins the rounds; they end with the broker."""
    config = broker.config
    rounds: list[tuple[str, int, Callable[[Broker, Replica], Awaitable[None]], Callable[[], Awaitable[object]]]] = [
        ("checkpoint", config.log_flush_offset_checkpoint_interval_ms, _sync, broker.checkpoints.write),
        ("retention", config.log_retention_check_interval_ms, _retain, _nothing),
        ("producer expiry", config.producer_id_expiration_check_interval_ms, _expire, _nothing),
    ]
    for name, interval_ms, work, after in rounds:
        broker.spawn(_every(broker, interval_ms, work, after), name)
    broker.spawn(_look(broker), "presence of log directories")


async def _every(
    broker: Broker,
    interval_ms: int,
    work: Callable[[Broker, Replica], Awaitable[None]],
    after: Callable[[], Awaitable[object]],
) -> None:
    while True:
        await asyncio.sleep(interval_ms / 1000)
        for replica in tuple(broker.partitions.opened()):
            try:
                if not (replica.log.closed or replica.offline):
                    await work(broker, replica)
            except (OSError, ProtocolError) as error:  # one partition's disk; the others go on
                if not (replica.log.closed or replica.offline):  # its topic was deleted meanwhile
                    broker.log.error("%r: %s", replica, error)
            except Exception:  # a mistake of ours: neither the others nor the next round suffer from it
                broker.log.exception("%r: housekeeping failed", replica)
            await asyncio.sleep(0)
        try:
            await after()
        except Exception:
            broker.log.exception("housekeeping failed")


async def _look(broker: Broker) -> None:
    while True:
        await asyncio.sleep(LOOK_MS / 1000)
        for directory in broker.directories.online:
            try:
                await broker.offload(directory.look)
            except OSError as error:  # which has taken it offline
                broker.log.error("log directory %s: %s", directory.path, error)


async def _sync(broker: Broker, replica: Replica) -> None:
    """The active segment is left to the operating system, as in Kafka: the others need not be read again.

    A failed sync takes the log directory offline: a second one would succeed, and the data be gone.
    """
    offset, paths = replica.log.pending_sync()
    disk = broker.directories.disk_of(replica.log.directory)
    for path in paths:
        await broker.offload(disk.sync, path)
    if paths:
        replica.log.mark_synced(offset)
    if replica.log.unsynced:
        broker.flusher.files(replica)


async def _retain(broker: Broker, replica: Replica) -> None:
    while dropped := apply_retention(replica.log, broker.now_ms()):
        broker.log.info("%r: dropped %d old segments", replica, dropped)
        await asyncio.sleep(0)


async def _expire(broker: Broker, replica: Replica) -> None:
    replica.log.expire_producers(broker.now_ms())


async def _nothing() -> None:
    """Do nothing after the round."""
