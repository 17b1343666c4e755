"""Stories in which a broker dies: acknowledgements, in-sync replicas, elections, coordinators."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from typing import Any

from oncelog import Admin, Producer, errors
from oncelog.faults.proxy import FaultProxy
from oncelog.faults.requests import Request
from oncelog.protocol.apis import ApiKey
from oncelog.stories.stage import Outcome, Stage, stable_and_end

VALUES = ["0", "1", "2"]
OPTIONS: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 200, "retry_backoff_max_ms": 200}
QUICK_SESSION = {"broker.session.timeout.ms": 2_000, "replica.lag.time.max.ms": 2_000}


def dead_leader(stage: Stage, cure: bool) -> Outcome:
    """The leader dies when the record is on all replicas, but before its answer arrives. The retry meets a new leader.

    The sequence numbers are in the log, so the new leader has them, too, and recognizes the second copy.
    """
    cluster = stage.cluster()
    topic = stage.topic(replicas=3)
    leader, _ = cluster.leader_and_isr(topic)
    died = threading.Event()

    def fault(request: Request) -> str | None:
        if request.api is ApiKey.PRODUCE and not died.is_set() and b"1" in request.records[0][61:]:
            died.set()
            return "lose-answer"
        return None

    with FaultProxy(stage.bootstrap) as faults:
        faults.rule = fault
        with Producer(faults.bootstrap_servers, enable_idempotence=cure, **OPTIONS) as producer:
            producer.send(topic, VALUES[0]).result()
            future = producer.send(topic, VALUES[1])
            died.wait()
            cluster.wait_for(lambda: len(stage.values(topic)) >= 2, "the record")
            cluster.kill(leader)
            stage.say(f"broker {leader}, the leader, dies before its answer arrives")
            future.result()
            producer.send(topic, VALUES[2]).result()
    stage.say(f"broker {cluster.leader_and_isr(topic)[0]} leads now")
    return stage.verdict(topic, VALUES)


def leader_alone(stage: Stage, cure: bool) -> Outcome:
    """With acks=1, the leader answers before a follower has the record. It dies, and a follower leads.

    With acks=all, the answer waits for the followers, and the producer sends the records again.
    """
    cluster = stage.cluster()
    topic = stage.topic(replicas=2)
    leader, in_sync = cluster.leader_and_isr(topic)
    (follower,) = in_sync - {leader}
    with Producer(stage.bootstrap, acks="all" if cure else 1, **OPTIONS) as producer:
        producer.send(topic, VALUES[0]).result()
        cluster.pause(follower)
        waiting = []
        for value in VALUES[1:]:  # the first one may be on its way to the follower already
            waiting.append(producer.send(topic, value))
            with suppress(errors.TimedOutError):
                waiting[-1].result(1)
        acknowledged = sum(future.done() for future in waiting)
        stage.say(f"the follower hangs, and the leader has acknowledged {acknowledged} of {len(waiting)} records")
        cluster.kill(leader)
        cluster.resume(follower)
        cluster.wait_for(lambda: cluster.leader_and_isr(topic)[0] == follower, "the follower leads")
        stage.say(f"broker {leader} dies, and broker {follower} leads")
        for future in waiting:
            future.result()
    return stage.verdict(topic, VALUES)


def unclean_election(stage: Stage, cure: bool) -> Outcome:
    """The only in-sync replica hangs, and one that lacks records may lead. What it lacks is lost.

    With unclean.leader.election.enable=false, the partition waits for the replica that has all records.
    """
    return _only_one_in_sync(stage, min_isr=1, unclean=not cure)


def one_in_sync_replica(stage: Stage, cure: bool) -> Outcome:
    """With acks=all, the in-sync replicas must have a record. If that is the leader alone, its disk has the only copy.

    With min.insync.replicas=2, the leader rejects the record with NOT_ENOUGH_REPLICAS until a second replica is back.
    """
    return _only_one_in_sync(stage, min_isr=2 if cure else 1, unclean=True)


def _only_one_in_sync(stage: Stage, *, min_isr: int, unclean: bool) -> Outcome:
    cluster = stage.cluster(**QUICK_SESSION)
    topic = stage.topic(replicas=2, min_insync_replicas=min_isr, unclean_leader_election_enable=unclean)
    leader, in_sync = cluster.leader_and_isr(topic)
    (follower,) = in_sync - {leader}
    with Producer(stage.bootstrap, delivery_timeout_ms=60_000, **OPTIONS) as producer:
        producer.send(topic, VALUES[0]).result()
        cluster.pause(follower)
        cluster.wait_for(lambda: cluster.leader_and_isr(topic)[1] == {leader}, "the follower has left")
        stage.say(f"the in-sync replicas are broker {leader} alone")
        waiting = producer.send(topic, VALUES[1])
        with suppress(errors.TimedOutError):
            waiting.result(1)
        stage.say("the record is acknowledged" if waiting.done() else "the record is not acknowledged")
        cluster.pause(leader)
        cluster.resume(follower)
        stage.say(f"broker {leader} hangs, and broker {follower} is back")
        if unclean:
            cluster.wait_for(lambda: cluster.leader_and_isr(topic)[0] == follower, "an unclean election")
            stage.say(f"broker {follower} leads, without the record")
        cluster.resume(leader)
        waiting.result()
        producer.send(topic, VALUES[2]).result()
    return stage.verdict(topic, VALUES)


def dead_coordinator(stage: Stage, cure: bool) -> Outcome:
    """The coordinator has decided to commit, and dies before it has written the markers. Readers wait.

    The decision is in its log, and so on other brokers. The next coordinator writes the markers.
    """
    cluster = stage.cluster(**{"replica.lag.time.max.ms": 1_000, "transaction.state.log.num.partitions": 3})
    topic = stage.topic(replicas=1)
    leader, _ = cluster.leader_and_isr(topic)
    coordinator, producer = coordinated_elsewhere(stage, leader)
    producer.begin_transaction()
    producer.send(topic, VALUES[0]).result()
    cluster.pause(leader)
    producer.commit_transaction()
    stage.say(f"broker {coordinator} has decided to commit; broker {leader}, which needs the marker, hangs")
    if cure:
        cluster.kill(coordinator)
    else:
        cluster.pause(coordinator)
    cluster.resume(leader)
    if cure:
        stage.say(f"broker {coordinator} dies, and another one coordinates")
        cluster.wait_for(lambda: len(set(stable_and_end(cluster.address(leader), topic))) == 1, "the marker")
    else:
        stage.say(f"broker {coordinator} hangs, too")
    stable, end = stable_and_end(cluster.address(leader), topic)
    stage.say(f"last stable offset {stable}, high watermark {end}")
    if not cure:
        cluster.resume(coordinator)
    producer.close()
    return Outcome(stable == end, "readers see the record" if stable == end else "readers wait for the marker")


def coordinated_elsewhere(stage: Stage, leader: int) -> tuple[int, Producer]:
    """Return a producer whose coordinator does not lead the topic, and the coordinator."""
    with Admin(stage.bootstrap) as admin:
        while True:
            name = uuid.uuid4().hex
            producer = Producer(stage.bootstrap, transactional_id=name, **OPTIONS)
            coordinator = admin.describe_transaction(name).coordinator
            if coordinator != leader:
                return coordinator, producer
            producer.close()
