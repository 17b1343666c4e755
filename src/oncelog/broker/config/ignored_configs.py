"""Names in the configuration of a Kafka installation that have no effect in oncelog."""

from __future__ import annotations

_WITHOUT_EFFECT = """
advertised.host.name alter.log.dirs.replication.quota.window.num
alter.log.dirs.replication.quota.window.size.seconds alter.config.policy.class.name
background.threads broker.id.generation.enable confluent.support.metrics.enable
controller.quorum.bootstrap.servers controller.quorum.election.timeout.ms controller.quorum.fetch.timeout.ms
controller.quorum.voters controller.socket.timeout.ms create.topic.policy.class.name
group.consumer.assignor.offload.enable group.coordinator.append.linger.ms group.coordinator.background.threads
group.coordinator.cached.buffer.max.bytes group.coordinator.threads initial.broker.registration.timeout.ms
inter.broker.protocol.version
log.cleaner.io.buffer.size log.cleaner.threads log.message.format.version
metadata.log.dir metric.reporters metrics.num.samples metrics.recording.level
metrics.sample.window.ms num.io.threads num.network.threads num.recovery.threads.per.data.dir
num.replica.alter.log.dirs.threads num.replica.fetchers offsets.load.buffer.size
offsets.topic.compression.codec process.roles queued.max.request.bytes queued.max.requests
replication.quota.window.num replication.quota.window.size.seconds
replica.socket.receive.buffer.bytes request.timeout.ms
share.coordinator.state.topic.min.isr share.coordinator.state.topic.num.partitions
share.coordinator.state.topic.replication.factor socket.receive.buffer.bytes
socket.send.buffer.bytes transaction.state.log.load.buffer.size zookeeper.connect
zookeeper.connection.timeout.ms zookeeper.session.timeout.ms
"""

WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())
"""Kafka's keys that oncelog ignores, because they do not change what clients see."""

UNUSED = frozenset(
    {
        "log.flush.start.offset.checkpoint.interval.ms",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
    }
)
"""Keys that are checked and shown like others, but have no effect: they concern followers, checks or pauses."""

_NOT_SETTINGS = """
KAFKA_HOME KAFKA_VERSION KAFKA_URI KAFKA_OPTS KAFKA_HEAP_OPTS KAFKA_JVM_PERFORMANCE_OPTS KAFKA_GC_LOG_OPTS
KAFKA_JMX_OPTS KAFKA_JMX_PORT KAFKA_JMX_HOSTNAME KAFKA_DEBUG KAFKA_LOG4J_OPTS KAFKA_LOG4J_LOGGERS
KAFKA_LOG4J_ROOT_LOGLEVEL KAFKA_LOG4J_CMD_OPTS KAFKA_TOOLS_LOG4J_LOGLEVEL
"""

NOT_SETTINGS = frozenset(_NOT_SETTINGS.split())
"""`KAFKA_*` variables that Kafka's scripts and images, or its clients' tests, use for other things."""
