"""Collect the metrics of one broker, in parts of a few hundred lines, so that other requests run between them.

Everything is read when somebody asks. The parts are read in different turns of the event loop, so a topic may be
created or deleted between two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.membership import Membership
from oncelog.broker.metadata.controller import Controller
from oncelog.broker.metrics import catalog as names
from oncelog.broker.metrics.coordinators import CoordinatorLines
from oncelog.broker.metrics.exposition import Kind, Lines, Metric, counted, single
from oncelog.broker.metrics.loop_watch import LoopWatch
from oncelog.broker.metrics.on_demand import OnDemand
from oncelog.broker.metrics.process import Process
from oncelog.broker.replication.in_sync import InSyncReplicas
from oncelog.broker.requests.request_times import QUANTILES, RequestTimes
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.telemetry.telemetry import Telemetry
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.leader import Leadership
from oncelog.cluster.replica import Replica
from oncelog.cluster.topics import NO_LEADER, PartitionInfo
from oncelog.net.server import Server

LINES_A_PART = 500
"""Lines that are made before other requests have their turn, in about a millisecond."""
LATE_MS = 300_000
"""A transaction is late if it is open for this time longer than `transaction.max.timeout.ms`, as in Kafka."""


@dataclass(frozen=True, slots=True)
class Collector:
    """What the metrics are read from."""

    membership: Membership
    cache: MetadataCache
    config: DynamicConfig
    partitions: Partitions
    directories: LogDirectories
    coordinators: CoordinatorLines
    in_sync: InSyncReplicas
    controller: Controller
    server: Server
    times: RequestTimes
    telemetry: Telemetry
    watch: LoopWatch
    process: Process
    clock: Callable[[], float]
    """The clock of `times`, in seconds."""
    loop_time: Callable[[], float]
    """The event loop's clock."""
    now_ms: Callable[[], int]

    def parts(self, on_demand: OnDemand) -> Iterator[str]:
        """Yield the whole text in parts. `on_demand` is what others were asked for."""
        part: list[str] = []
        for line in self._lines(on_demand):
            if line is not None:
                part.append(line)
            if line is None or len(part) >= LINES_A_PART:
                yield "".join(part)
                part = []
        yield "".join(part)

    def _lines(self, on_demand: OnDemand) -> Lines[None]:
        yield from self.own_lines()
        yield from on_demand.lags.lines()
        yield from counted(names.SINK_PENDING, on_demand.sinks)

    def own_lines(self) -> Lines[None]:
        """Yield the lines that need no answer of others."""
        yield from self._traffic()
        yield from self._broker()
        yield from self._requests()
        yield from self._cluster()
        yield from self._partitions()
        yield from self._replicas()
        yield from self.coordinators.lines()
        yield from self._clients()
        yield from self._process()

    # -- the broker ---------------------------------------------------------------------------------------------------

    def _traffic(self) -> Lines[None]:
        for attribute, metric in names.TRAFFIC.items():
            yield metric.head()
            yield metric.sample(self.partitions.traffic.total(attribute), labels=())
            yield None
            for topic, traffic in self.partitions.traffic.topics():
                yield metric.sample(getattr(traffic, attribute), (topic,))

    def _broker(self) -> Lines[None]:
        late_before = self.now_ms() - self.config.static.transaction_max_timeout_ms - LATE_MS
        counts = Counter[Metric]()
        for replica in tuple(self.partitions.opened()):
            term = replica.term
            if not replica.log.closed and replica.log.last_stable_offset < replica.log.high_watermark:
                counts[names.LATE_TRANSACTIONS] += _has_late(replica, late_before)
                yield None if len(replica.log.producer_entries) > LINES_A_PART else ""
            if term is not None:
                counts[names.LEADERS] += 1
                counts[names.UNDER_REPLICATED] += len(term.isr) < len(term.replicas)
                counts[names.UNDER_MIN_ISR] += term.under_min_isr
                counts[names.AT_MIN_ISR] += len(term.isr) == term.min_insync_replicas
            yield ""
        for topic in self.cache.image.topics():
            for index in range(topic.partition_count):
                if self.partitions.roles.hosts(topic.name, index):
                    counts[names.REPLICAS] += 1
                    counts[names.OFFLINE_REPLICAS] += self.partitions.is_offline(topic.name, index)
                yield ""
        for metric in _OF_BROKER:
            yield from single(metric, counts[metric])
        yield from single(names.ISR_SHRINKS, self.in_sync.shrinks)
        yield from single(names.ISR_EXPANDS, self.in_sync.expands)
        syncs = self.directories.syncs
        yield from single(names.SYNCS, syncs.count)
        yield from single(names.SYNC_SECONDS, syncs.total_s)
        yield from single(names.SLOWEST_SYNC, max(syncs.since(self.loop_time() - 60), default=0.0))
        yield from single(names.OFFLINE_DIRECTORIES, sum(not directory.online for directory in self.directories))
        yield names.CONNECTIONS.head()
        by_listener = Counter(connection.session.listener.name for connection in self.server.connections)
        for listener in self.server.listeners:
            yield names.CONNECTIONS.sample(by_listener[listener], (listener,))
        yield from single(names.LOOP_IDLE, self.watch.idle)
        yield from single(names.HANDLER_IDLE, self.watch.idle)
        yield from single(names.LOOP_DELAY, self.watch.longest_delay_s)

    def _requests(self) -> Lines[None]:
        now = self.clock()
        apis = list(self.times.apis())
        yield names.REQUESTS.head()
        for name, times in apis:
            yield names.REQUESTS.sample(times.count, (name,))
        measured = {}
        for name, times in apis:
            measured[name] = times.quantiles_ms(now)
            yield None
        for kind, metric in names.TIMES.items():
            yield metric.head()
            for name, found in measured.items():
                for quantile, value in zip(QUANTILES, found.get(kind, [0.0] * len(QUANTILES)), strict=True):
                    yield metric.sample(value, (name, str(quantile)))

    def _process(self) -> Lines[None]:
        for metric, value in self.process.read():
            yield from single(metric, value)

    # -- partitions ---------------------------------------------------------------------------------------------------

    def _cluster(self) -> Lines[None]:
        image = self.cache.image
        is_controller = image.controller == self.membership.node_id
        topics = list(image.topics())
        yield from single(names.BROKERS, len(image.brokers))
        yield names.BROKER_INFO.head()
        for broker, registered in sorted(image.brokers.items()):
            endpoint = next(iter(registered.endpoints.values()), None)
            address = f"{endpoint.host}:{endpoint.port}" if endpoint else ""
            yield names.BROKER_INFO.sample(1, (str(broker), address))
        yield from single(names.ACTIVE_CONTROLLER, int(is_controller))
        without = partitions = 0
        for topic in topics:
            partitions += topic.partition_count
            without += sum(info.leader == NO_LEADER for info in topic.partitions)
            yield None if topic.partition_count > LINES_A_PART else ""
        yield from single(names.OFFLINE_PARTITIONS, without if is_controller else 0)
        yield from single(names.TOPICS, len(topics) if is_controller else 0)
        yield from single(names.PARTITIONS, partitions if is_controller else 0)
        yield from single(names.UNCLEAN_ELECTIONS, self.controller.unclean_elections)
        yield names.TOPIC_PARTITIONS.head()
        for topic in topics:
            yield names.TOPIC_PARTITIONS.sample(topic.partition_count, (topic.name,))
        for metric, value_of in _OF_STATE:
            yield metric.head()
            for topic in topics:
                for index, info in enumerate(topic.partitions):
                    yield metric.sample(value_of(info), (topic.name, str(index)))

    def _partitions(self) -> Lines[None]:
        """Yield what the leader of each partition knows."""
        for metric, value_of in _OF_LEADER:
            yield metric.head()
            for replica in tuple(self.partitions.opened()):
                if replica.term is not None:
                    yield metric.sample(value_of(replica, replica.term), (replica.topic, str(replica.partition)))

    def _replicas(self) -> Lines[None]:
        for metric, value_of in _OF_REPLICA:
            yield metric.head()
            for replica in tuple(self.partitions.opened()):
                if not replica.log.closed:
                    yield metric.sample(value_of(replica), (replica.topic, str(replica.partition)))

    # -- clients ------------------------------------------------------------------------------------------------------

    def _clients(self) -> Lines[None]:
        """Yield what clients have pushed (KIP-714)."""
        telemetry = self.telemetry
        exported = telemetry.exported
        if exported is None:
            return
        telemetry.expire()
        instances = telemetry.instances
        yield from single(names.CLIENT_INSTANCES, len(instances))
        yield from single(names.CLIENT_THROTTLED, instances.throttled)
        yield from single(names.CLIENT_UNKNOWN, instances.unknown_subscriptions)
        yield from single(names.CLIENT_INVALID, telemetry.invalid)
        yield from single(names.CLIENT_TRUNCATED, telemetry.truncated)
        yield from single(names.CLIENT_DROPPED, exported.dropped)
        yield from single(names.CLIENT_SERIES, exported.series)
        yield names.CLIENT_INFO.head()
        for values in exported.infos():
            yield names.CLIENT_INFO.sample(1, values)
        for name, counter, samples in exported.families():
            family = Metric(name, Kind.COUNTER if counter else Kind.GAUGE, "Pushed by clients (KIP-714).")
            yield family.head()
            for sample in samples:
                yield family.sample(sample.value, sample.values, sample.labels)


def _has_late(replica: Replica, before_ms: int) -> bool:
    """Return whether a transaction of the partition has begun before a time."""
    entries = replica.log.producer_entries.values()
    return any(entry.txn_start >= 0 and entry.last_timestamp < before_ms for entry in entries)


_OF_BROKER = (
    names.LEADERS,
    names.REPLICAS,
    names.UNDER_REPLICATED,
    names.UNDER_MIN_ISR,
    names.AT_MIN_ISR,
    names.OFFLINE_REPLICAS,
    names.LATE_TRANSACTIONS,
)

_OF_STATE: tuple[tuple[Metric, Callable[[PartitionInfo], int]], ...] = (
    (names.LEADER, lambda info: info.leader),
    (names.PREFERRED, lambda info: int(info.leader == info.replicas[0])),
    (names.TOPIC_REPLICAS, lambda info: len(info.replicas)),
    (names.TOPIC_IN_SYNC, lambda info: len(info.isr)),
    (names.TOPIC_UNDER_REPLICATED, lambda info: int(len(info.isr) < len(info.replicas))),
)

_OF_LEADER: tuple[tuple[Metric, Callable[[Replica, Leadership], int]], ...] = (
    (names.END, lambda replica, _: replica.log.high_watermark),
    (names.START, lambda replica, _: replica.log.log_start_offset),
    (names.STABLE_DISTANCE, lambda replica, _: replica.log.high_watermark - replica.log.last_stable_offset),
    (names.PARTITION_UNDER_MIN_ISR, lambda _, term: int(term.under_min_isr)),
    (names.PARTITION_AT_MIN_ISR, lambda _, term: int(len(term.isr) == term.min_insync_replicas)),
    (names.PARTITION_REPLICAS, lambda _, term: len(term.replicas)),
    (names.PARTITION_IN_SYNC, lambda _, term: len(term.isr)),
)

_OF_REPLICA: tuple[tuple[Metric, Callable[[Replica], int]], ...] = (
    (names.LOG_SIZE, lambda replica: replica.log.size_bytes),
    (names.LOG_START, lambda replica: replica.log.log_start_offset),
    (names.LOG_END, lambda replica: replica.log.log_end_offset),
    (names.PRODUCERS, lambda replica: len(replica.log.producer_entries)),
    (names.DUPLICATES, lambda replica: replica.log.statistics.duplicate_batches),
    (names.GAPS, lambda replica: replica.log.statistics.sequence_gaps),
    (names.FENCED, lambda replica: replica.log.statistics.fenced_batches),
    (names.STALE, lambda replica: replica.log.statistics.stale_sequences),
)
