"""What runs on the driver, and for `oncelog sink`: plans, and what they need to know beforehand. Needs no Spark."""

from __future__ import annotations

from pathlib import Path

import msgspec

from oncelog import errors
from oncelog.client.blocking import BlockingCluster
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages import create_topics as ct
from oncelog.spark import faults
from oncelog.spark.cluster.brokers import Brokers, run
from oncelog.spark.commit import operations as op
from oncelog.spark.commit import plan, steps, undo
from oncelog.spark.commit.errors import MisuseError, NotPermittedError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.commit.ownership import check_decisions
from oncelog.spark.commit.plan import Carried, Planning
from oncelog.spark.commit.record import Owner, Record, Source
from oncelog.spark.commit.steps import DRIVER_TIMEOUT_MS, EXPIRY_CHECK_MS, MARGIN_MS, Sink
from oncelog.spark.options import reach
from oncelog.spark.writing.options import SinkOptions

DENIED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def sink_of(options: SinkOptions, targets: tuple[TopicPartition, ...] = ()) -> Sink:
    """The protocol's constants for these options."""
    margin_ms = min(MARGIN_MS, options.timeout_ms // 3)
    least_ms = min(EXPIRY_CHECK_MS, margin_ms)
    decision = TopicPartition(options.decision_topic, 0)
    return Sink(
        options.prefix,
        decision,
        targets,
        driver_timeout_ms=min(DRIVER_TIMEOUT_MS, max(margin_ms - EXPIRY_CHECK_MS, least_ms)),
        task_timeout_ms=options.timeout_ms,
        margin_ms=margin_ms,
    )


class _StreamMetadata(msgspec.Struct):
    id: str


def query_id(checkpoint: str) -> str:
    """The query id that Spark keeps in a checkpoint of this machine; "" where it cannot be read from here."""
    scheme, colon, path = checkpoint.rpartition(":")
    if not path or (colon and scheme != "file"):
        return ""
    try:
        return msgspec.json.decode((Path(path) / "metadata").read_bytes(), type=_StreamMetadata).id
    except (OSError, msgspec.DecodeError):
        return ""


def make_plan(options: SinkOptions, applicant: Source) -> tuple[Sink, Carried]:
    """Plan(b), on the driver, of whoever wants to write."""
    faults.enter("plan")
    with BlockingCluster(**options.client) as cluster:
        reach(cluster, options.client["bootstrap_servers"], options.bootstrap_ms)
        sink = prepare(cluster, options)
        planning = Planning(sink, applicant, options.permission)
        brokers = Brokers(cluster)
        brokers.transactions.check_timeout(options.prefix, options.timeout_ms)
        return sink, run(steps.run(plan.PLAN, planning), brokers).carried()


def prepare(cluster: BlockingCluster, options: SinkOptions) -> Sink:
    """Make the decision topic if there is none, and find the output partitions."""
    ensure_decision_topic(cluster, options.decision_topic)
    sink = sink_of(options, () if options.topic is None else target_partitions(cluster, options.topic))
    return sink if sink.targets else remembered_targets(cluster, options, sink)


def remembered_targets(cluster: BlockingCluster, options: SinkOptions, sink: Sink) -> Sink:
    """Where rows name their topics: the topics of the record (not fenced yet: this is no more than a hint)."""
    targets: list[TopicPartition] = []
    for topic in last_record(cluster, sink).topics:
        try:
            targets += target_partitions(cluster, topic)
        except MisuseError:
            continue  # deleted meanwhile
    return sink_of(options, tuple(targets))


def last_record(cluster: BlockingCluster, sink: Sink) -> Record:
    """The record as it is now."""
    brokers = Brokers(cluster)
    window: op.Window = brokers.answer(op.ReadDecisions(sink.decision))
    return run(plan.read_record(sink, window), brokers)


def look(options: SinkOptions) -> tuple[Record, tuple[Owner, ...], tuple[op.OpenProducer, ...]]:
    """`oncelog sink list`: record, open task transactions, those open in a partition only. Changes nothing."""
    with BlockingCluster(**options.client) as cluster:
        _check_used(cluster, options)
        sink = remembered_targets(cluster, options, sink_of(options))
        left, strays = run(plan.find_open(sink), Brokers(cluster))
        record = last_record(cluster, sink)
        check_decisions(options.decision_topic, options.prefix, record)
        return run(plan.read_parts(sink, record), Brokers(cluster)), left, strays


def _check_used(cluster: BlockingCluster, options: SinkOptions) -> None:
    cluster.refresh([options.decision_topic], patient=True)
    if options.decision_topic not in cluster.topology.topics:
        raise MisuseError(f"there is no topic {options.decision_topic}: no sink {options.prefix} has ever run here")


def settle(options: SinkOptions) -> Planning:
    """`oncelog sink settle`: P0 to P4 without a batch."""
    with BlockingCluster(**options.client) as cluster:
        _check_used(cluster, options)
        return run(steps.run(plan.PLAN, Planning(prepare(cluster, options))), Brokers(cluster))


def undo_decision(options: SinkOptions, *, accept_loss: bool) -> Planning:
    """`oncelog sink abort`: take an unsettled decision back, or, where part of it is visible, accept the loss."""
    phases = undo.UNDO_ACCEPTING if accept_loss else undo.UNDO
    with BlockingCluster(**options.client) as cluster:
        _check_used(cluster, options)
        return run(steps.run(phases, Planning(prepare(cluster, options))), Brokers(cluster))


def target_partitions(cluster: BlockingCluster, topic: str) -> tuple[TopicPartition, ...]:
    """The partitions of option `topic`, which must exist."""
    try:
        known = cluster.topic(topic)
    except errors.UnknownTopicError as error:
        raise MisuseError(
            f"option topic: there is no topic {topic!r}; create it: oncelog topic create {topic}"
        ) from error
    except errors.AuthorizationError as error:
        raise NotPermittedError(f"option topic: the sink needs Describe, Read and Write on {topic}") from error
    return tuple(TopicPartition(topic, partition) for partition in sorted(known.partitions))


def ensure_decision_topic(cluster: BlockingCluster, name: str) -> None:
    """One partition, compacted; made if it does not exist."""
    cluster.refresh([name], patient=True)
    if name not in cluster.topology.topics:
        topic = ct.CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=-1,
            assignments=[],
            configs=[ct.CreatableTopicConfig(name="cleanup.policy", value="compact")],
        )
        response = cluster.call_controller(
            ct.CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=False)
        )
        if response.topics[0].error_code in DENIED:
            raise NotPermittedError(
                f"option decisionTopic: the sink may not create {name}: permit it (Create), or make it beforehand with "
                "one partition and cleanup.policy=compact, and permit Describe, Read and Write on it"
            )
        if response.topics[0].error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise_for_error(response, f"creating decisionTopic {name}")
    # The topic exists. With a busy controller, the brokers may learn of it late.
    if len(cluster.topic(name, missing_ms=cluster.cluster.api_timeout_ms).partitions) != 1:
        raise MisuseError(f"option decisionTopic: {name} must have exactly one partition")
