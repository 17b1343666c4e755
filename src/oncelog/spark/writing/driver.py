"""Plans and operators' commands on the driver, and what they need to know beforehand. Needs no Spark."""

from __future__ import annotations

from dataclasses import replace

from oncelog import errors
from oncelog.client.blocking import BlockingCluster
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages import create_topics as ct
from oncelog.protocol.messages import describe_configs as dc
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

POLICY = "cleanup.policy"
DENIED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def sink_of(options: SinkOptions, targets: tuple[TopicPartition, ...] = ()) -> Sink:
    """Return the protocol's constants for these options."""
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


def make_plan(options: SinkOptions, applicant: Source) -> tuple[Sink, Carried]:
    """Plan(b), on the driver, for this applicant."""
    faults.enter("plan")
    with BlockingCluster(**options.client) as cluster:
        reach(cluster, options.client["bootstrap_servers"], options.bootstrap_ms)
        sink = prepare(cluster, options)
        check_cleanup_policy(cluster, options.decision_topic)
        brokers = Brokers(cluster)
        sink = replace(sink, two_phase=_two_phase(brokers, options))
        if not sink.two_phase:
            brokers.transactions.check_timeout(options.prefix, options.timeout_ms)
        planning = Planning(sink, applicant, options.permission)
        return sink, run(steps.run(plan.PLAN, planning), brokers).carried()


def _two_phase(brokers: Brokers, options: SinkOptions) -> bool:
    """Return whether the tasks' transactions have no timeout."""
    if options.two_phase == "false":
        return False
    found = brokers.transactions.permits_two_phase_commit(options.prefix)
    if options.two_phase == "true" and not found:
        raise MisuseError(
            "option twoPhaseCommit=true: the broker does not permit transactions without a timeout. oncelog's needs "
            "transaction.two.phase.commit.enable=true, and the permission TWO_PHASE_COMMIT on transactional ids that "
            f"begin with {options.prefix!r}; Apache Kafka 4.3 does not have it"
        )
    return found


def prepare(cluster: BlockingCluster, options: SinkOptions) -> Sink:
    """Create the decision topic if it does not exist, and find the output partitions."""
    ensure_decision_topic(cluster, options.decision_topic, also=options.topic)
    sink = sink_of(options, () if options.topic is None else target_partitions(cluster, options.topic))
    return sink if sink.targets else remembered_targets(cluster, sink)


def remembered_targets(cluster: BlockingCluster, sink: Sink) -> Sink:
    """Add the partitions of the record's topics, for a sink whose rows name their topics.

    Nothing is fenced yet, so these are only where to search for lost markers.
    """
    targets: list[TopicPartition] = []
    for topic in last_record(cluster, sink).topics:
        try:
            targets += target_partitions(cluster, topic)
        except MisuseError:
            continue  # deleted since
    return replace(sink, targets=tuple(targets))


def last_record(cluster: BlockingCluster, sink: Sink) -> Record:
    """Return the current record."""
    brokers = Brokers(cluster)
    window: op.Window = brokers.answer(op.ReadDecisions(sink.decision))
    return run(plan.read_record(sink, window), brokers)


def look(options: SinkOptions) -> tuple[Record, tuple[Owner, ...], tuple[op.OpenProducer, ...]]:
    """Run `oncelog sink list`: return the record, the open task transactions, and those open only in a partition.

    Change nothing.
    """
    with BlockingCluster(**options.client) as cluster:
        _check_used(cluster, options.decision_topic, options.prefix)
        sink = remembered_targets(cluster, sink_of(options))
        left, strays = run(plan.find_open(sink), Brokers(cluster))
        record = last_record(cluster, sink)
        check_decisions(options.decision_topic, options.prefix, record)
        return run(plan.read_parts(sink, record), Brokers(cluster)), left, strays


def _check_used(cluster: BlockingCluster, decisions: str, prefix: str) -> None:
    cluster.refresh([decisions], patient=True)
    if decisions not in cluster.topology.topics:
        raise MisuseError(
            f"no sink {prefix!r} found: its decision topic {decisions!r} does not exist; check both names"
        )


def settle(options: SinkOptions) -> Planning:
    """Run `oncelog sink settle`: P0 to P4 without a batch."""
    with BlockingCluster(**options.client) as cluster:
        _check_used(cluster, options.decision_topic, options.prefix)
        return run(steps.run(plan.PLAN, Planning(prepare(cluster, options))), Brokers(cluster))


def undo_decision(options: SinkOptions, *, accept_loss: bool) -> Planning:
    """Run `oncelog sink abort`: revoke an unsettled decision. If part of it is visible, `accept_loss` ends it."""
    phases = undo.UNDO_ACCEPTING if accept_loss else undo.UNDO
    with BlockingCluster(**options.client) as cluster:
        _check_used(cluster, options.decision_topic, options.prefix)
        return run(steps.run(phases, Planning(prepare(cluster, options))), Brokers(cluster))


def target_partitions(cluster: BlockingCluster, topic: str) -> tuple[TopicPartition, ...]:
    """Return the partitions of option `topic`. Raises MisuseError if it does not exist."""
    try:
        known = cluster.topic(topic)
    except errors.UnknownTopicError as error:
        raise MisuseError(
            f"option topic: topic {topic!r} does not exist; create it with `oncelog topic create {topic}`"
        ) from error
    except errors.AuthorizationError as error:
        raise NotPermittedError(
            f"option topic: the sink needs the permissions Describe, Read and Write on {topic}"
        ) from error
    return tuple(TopicPartition(topic, partition) for partition in sorted(known.partitions))


def ensure_decision_topic(cluster: BlockingCluster, name: str, *, also: str | None = None) -> None:
    """Create the decision topic with one partition, compacted, unless it exists. Raises MisuseError, NotPermittedError.

    `also`: another topic for the same Metadata request, because its partitions are needed next.
    """
    cluster.refresh([name] if also is None else [name, also], patient=True)
    if name not in cluster.topology.topics:
        topic = ct.CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=-1,
            assignments=[],
            configs=[ct.CreatableTopicConfig(name=POLICY, value="compact")],
        )
        response = cluster.call_controller(
            ct.CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=False)
        )
        if response.topics[0].error_code in DENIED:
            raise NotPermittedError(
                f"option decisionTopic: the sink lacks the permission Create on {name}; grant it, or create the topic "
                "with one partition and cleanup.policy=compact, and grant Describe, Read and Write on it"
            )
        if response.topics[0].error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise_for_error(response, f"creation of decision topic {name!r}")
    # The topic exists. With a busy controller, the brokers may learn of it late.
    if len(cluster.topic(name, missing_ms=cluster.cluster.api_timeout_ms).partitions) != 1:
        raise MisuseError(f"option decisionTopic={name}: the topic must have exactly one partition; name another one")


def check_cleanup_policy(cluster: BlockingCluster, name: str) -> None:
    """Raise MisuseError if brokers delete old records of the decision topic: its last record would be lost.

    A topic has the broker's default policy after a restore of its metadata, or if a producer has created it. Without
    the permission DescribeConfigs, which the sink does not need otherwise, nothing is checked.
    """
    wanted = dc.DescribeConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=[POLICY]
    )
    try:
        # Ask the leader: the client retries until the leader knows a new topic. Another broker may not know it yet.
        response = cluster.call_leader(name, 0, dc.DescribeConfigsRequest(resources=[wanted]))
        raise_for_error(response, f"settings of decision topic {name!r}")
    except errors.AuthorizationError:
        return
    policy = {item.name: item.value for item in response.results[0].configs}.get(POLICY) or ""
    if "delete" in policy.split(","):
        raise MisuseError(
            f"option decisionTopic: {name} has {POLICY}={policy}, so the brokers would delete its last decision, and a "
            "replayed batch would be written twice. Run `oncelog topic alter "
            f"{name} --config {POLICY}=compact`, then start the query again"
        )
