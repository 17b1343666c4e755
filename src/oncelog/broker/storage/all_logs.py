"""Open all logs of a broker after its start, maintain them, and close them when it stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from oncelog.broker.storage.clean_mark import at_stop
from oncelog.broker.storage.housekeeping import Housekeeping
from oncelog.broker.storage.log_cleaner import LogCleaner
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import ITEMS_A_TURN
from oncelog.broker.workers import Runtime
from oncelog.cluster.image import MetadataImage
from oncelog.protocol.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class AllLogs:
    """All logs in the log directories of one broker."""

    directories: LogDirectories
    partitions: Partitions
    housekeeping: Housekeeping
    cleaner: LogCleaner
    runtime: Runtime

    def suspects(self) -> Sequence[TopicPartition]:
        """Return the partitions whose logs must be open before this broker may be elected."""
        return self.partitions.incomplete.suspects()

    async def open_suspects(self, suspects: Sequence[TopicPartition]) -> None:
        """Open these logs. If one cannot be opened, this broker leaves its ISR."""
        for first in range(0, len(suspects), ITEMS_A_TURN):
            turn = suspects[first : first + ITEMS_A_TURN]
            for topic, keys in groupby(turn, itemgetter(0)):
                await self._prefetch(topic, [partition for _, partition in keys])
            await self.partitions.open_suspects(turn)

    async def open_all(self, image: MetadataImage) -> None:
        """Open all logs that are not open yet."""
        for topic in tuple(image.topics()):
            for partition in range(topic.partition_count):
                if partition % ITEMS_A_TURN == 0:
                    await self._prefetch(
                        topic.name, range(partition, min(partition + ITEMS_A_TURN, topic.partition_count))
                    )
                await self.partitions.open_all([(topic.name, partition)])

    async def _prefetch(self, topic: str, partitions: Sequence[int]) -> None:
        await self.runtime.workers.offload(self.directories.prefetch, topic, partitions)

    def start_upkeep(self) -> None:
        """Start the periodic work on the logs. It ends when the broker stops."""
        self.housekeeping.start()
        self.cleaner.start()

    async def close(self, note_at_stop: Callable[[], Awaitable[None]]) -> None:
        """Close all logs, and mark the directories whose logs and checkpoints are complete as cleanly closed.

        `note_at_stop` writes to the store what the next start must know. That is before the marks, because a mark
        without it would hide a failed directory.
        """
        clean = await self.partitions.close()
        written = await self.partitions.checkpoints.write()
        self.directories.end_generations(clean)
        await note_at_stop()
        for directory in clean:
            if directory in written and directory.online:
                try:
                    opened = self.partitions.opened(directory)
                    directory.mark_clean(at_stop(directory.at_stop, opened, self.partitions.roles.hosts))
                except OSError as error:
                    self.runtime.logger.error(
                        "cannot mark log directory %s as cleanly closed: %s", directory.path, error
                    )
