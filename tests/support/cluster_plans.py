"""The plans of worlds with three brokers: what clients write, and at least ten faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from oncelog.sim.faults import (
    AnyFault,
    Copy,
    Crash,
    Cut,
    CutStore,
    Damage,
    Die,
    ExpireSessions,
    Kill,
    Limit,
    LoseAnswers,
    Pause,
    Reset,
    Restore,
    SetClock,
    Skew,
    Slow,
)
from oncelog.sim.plan import Plan, PlanError

SCENARIO = "cluster"
BROKERS = (1, 2, 3)
HOSTS = tuple(f"broker-{number}" for number in BROKERS)
MIN_ISR = 2
PARTITIONS = 3
"""Of the topic to which all clients write."""
WRITERS = 3
"""Transactional ids."""
PRODUCERS = 3
GROUPS = 2
"""Groups that commit without a transaction."""
MEMBERS = 3
"""Members of a group that rebalances."""
FAULTS = (10, 14)
SECONDS = 12.0
"""In virtual time, before the faults end."""
TIMEOUTS_MS = (1000, 60_000)
_FEATURE_SETTINGS = {
    "trim": {"log_retention_check_interval_ms": 500},
    "retain": {"log_retention_check_interval_ms": 500},
    "compact": {"log_cleaner_backoff_ms": 300},
    "members": {
        "group_min_session_timeout_ms": 500,
        "group_consumer_min_session_timeout_ms": 500,
        "group_consumer_session_timeout_ms": 1500,
        "group_consumer_min_heartbeat_interval_ms": 100,
        "group_consumer_heartbeat_interval_ms": 300,
        "group_consumer_assignment_interval_ms": 200,
    },
}
"""The settings of brokers by feature. A world has at most two. Each replaces a quarter of the other workload."""
RETENTION_BYTES = 1500
SLOW_ANSWERS_S = 0.3
SLOW_SHARE = 0.25
"""The share of worlds in which answers of the metadata store are slow."""
DAMAGED_SHARE = 0.3
"""The share of worlds in which a replica is damaged, or a broker's directory is replaced by an older copy."""
DATA = "data"
"""The log directory of each broker."""
KINDS = ("kill", "crash", "die", "pause", "cut", "one way", "slow", "limit", "reset", "isolate")
STORE_KINDS = ("requests", "answers", "lose", "expire", "failover", "unknown")

Index = Annotated[int, msgspec.Meta(ge=0, lt=3)]
Pause_s = Annotated[float, msgspec.Meta(ge=0, le=60)]


class Numbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="work", tag="numbers"):
    """An idempotent producer writes `count` more numbers to its partition, with acks=all."""

    producer: Index
    count: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    pause_s: Pause_s


class Loose(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="work", tag="loose"):
    """A producer without an id writes `count` records with acks=1, each once, also to a former leader.

    So leaders have records that their followers lack. They may be lost.
    """

    partition: Index
    count: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    pause_s: Pause_s


class Transaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="work", tag="transaction"):
    """A writer's next transaction. `stall_s` passes before it ends."""

    writer: Index
    partitions: list[Index]
    offset: bool
    """Whether it commits an offset of the writer's group."""
    stall_s: Pause_s
    commit: bool
    pause_s: Pause_s


class Commits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="work", tag="commits"):
    """A group commits `count` more offsets, each larger than the one before."""

    group: Annotated[int, msgspec.Meta(ge=0, lt=GROUPS)]
    count: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    pause_s: Pause_s


class Elect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="work", tag="elect"):
    """The preferred leaders of some partitions are elected."""

    partitions: list[Index]
    pause_s: Pause_s


class Recreate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="work", tag="recreate"):
    """A topic is deleted, created again with the same name, and gets records."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=3)]
    added: Annotated[int, msgspec.Meta(ge=0, le=3)]
    """How many partitions are added later."""
    count: Annotated[int, msgspec.Meta(ge=0, le=100)]
    """The number of records for each partition."""
    pause_s: Pause_s


class Trim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="work", tag="trim"):
    """A producer writes `count` records to a topic, and deletes all but the last `keep` of the topic."""

    count: Annotated[int, msgspec.Meta(ge=0, le=100)]
    keep: Annotated[int, msgspec.Meta(ge=0, le=100)]
    pause_s: Pause_s


class Put(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="work", tag="put"):
    """A key of a compacted topic gets a new value, or is deleted."""

    key: Index
    delete: bool
    commit: bool | None
    """Whether a transaction writes the value and commits. If it is None, there is no transaction."""
    stall_s: Pause_s
    pause_s: Pause_s
    others: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """The number of values that other keys get while the transaction is open, without a transaction."""


class Membership(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="work", tag="membership"):
    """A member joins a group, commits `count` times for its partitions, and leaves, or disappears."""

    member: Index
    count: Annotated[int, msgspec.Meta(ge=0, le=100)]
    leave: bool
    pause_s: Pause_s
    protocol: Literal["classic", "consumer"] = "classic"
    """The same for all members of a world."""


Work = Numbers | Loose | Transaction | Commits | Elect | Recreate | Trim | Put | Membership


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a world."""

    store_latency_s: list[float]
    """The range of the latency of a request to the metadata store, and of its answer."""
    transaction_timeout_ms: int
    broker: dict[str, Any]
    """Settings of the brokers."""
    retention_bytes: int = -1
    """`retention.bytes` of the topic whose records are deleted."""
    slow_answers_s: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """How much longer some answers of the metadata store may take, so that brokers read their own writes before."""


def workload_of(plan: Plan) -> list[Work]:
    """Return the workload of a plan. Raises PlanError."""
    try:
        return msgspec.convert(plan.workload, list[Work])
    except msgspec.ValidationError as error:
        raise PlanError(f"not a workload of a cluster: {error}") from error


def settings_of(plan: Plan) -> Settings:
    """Return the settings of a plan. Raises PlanError."""
    try:
        return msgspec.convert(plan.settings, Settings)
    except msgspec.ValidationError as error:
        raise PlanError(f"not the settings of a cluster: {error}") from error


def expand(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng, features = random.Random(f"cluster {seed}"), _features(seed)
    settings = Settings(
        store_latency_s=rng.choice(([0.0002, 0.002], [0.0005, 0.02])),
        transaction_timeout_ms=rng.choice(TIMEOUTS_MS),
        broker={
            "broker_session_timeout_ms": 2000,
            "broker_heartbeat_interval_ms": 500,
            "replica_lag_time_max_ms": rng.choice((500, 2000)),
            "replica_socket_timeout_ms": rng.choice((500, 2000)),
            "log_flush_offset_checkpoint_interval_ms": rng.choice((200, 2000)),
            "min_insync_replicas": MIN_ISR,
            "offsets_topic_num_partitions": 2,
            "transaction_state_log_num_partitions": 2,
            **{key: value for feature in features for key, value in _FEATURE_SETTINGS[feature].items()},
        },
        retention_bytes=RETENTION_BYTES if "retain" in features else -1,
        slow_answers_s=SLOW_ANSWERS_S if random.Random(f"slow store {seed}").random() < SLOW_SHARE else 0.0,
    )
    workload, faults = _workload(rng), _faults(rng)
    for feature in features:  # divide the load of a world instead of adding to it
        workload = [work for index, work in enumerate(workload) if index % 4]
        workload += _FEATURES[feature](random.Random(f"{feature} {seed}"))
    gone = {each.host for each in faults if isinstance(each, Kill | Pause | CutStore) and each.seconds is None}
    forever = bool(gone)
    faults += _damages(seed, [host for host in HOSTS if host not in gone])
    workload += _administration(seed, all_return=not forever)
    return Plan(
        scenario=SCENARIO,
        seed=seed,
        seconds=SECONDS,
        settings=msgspec.to_builtins(settings),
        workload=[msgspec.to_builtins(each) for each in workload],
        faults=faults,
    )


def _workload(rng: random.Random) -> list[Work]:
    work: list[Work] = []
    for index in range(PRODUCERS):
        work += [Numbers(index, rng.randrange(1, 10), rng.uniform(0, 0.4)) for _ in range(15)]
    for index in range(PARTITIONS):
        work += [Loose(index, rng.randrange(1, 6), rng.uniform(0, 1)) for _ in range(12)]
    for index in range(WRITERS):
        work += [_transaction(index, rng) for _ in range(30)]
    for index in range(GROUPS):
        work += [Commits(index, rng.randrange(1, 5), rng.uniform(0, 0.6)) for _ in range(15)]
    return work


def _features(seed: int) -> list[str]:
    rng = random.Random(f"features {seed}")
    return rng.sample(list(_FEATURE_SETTINGS), rng.choice((0, 1, 1, 2)))


def _trims(rng: random.Random) -> list[Work]:
    return [Trim(rng.randrange(1, 8), rng.choice((0, 0, 1, 5, 20)), rng.uniform(0, 0.6)) for _ in range(25)]


def _retains(rng: random.Random) -> list[Work]:
    return [Trim(rng.randrange(1, 8), 100, rng.uniform(0, 0.6)) for _ in range(20)]


def _puts(rng: random.Random) -> list[Work]:
    return [
        Put(
            key=rng.randrange(3),
            delete=rng.random() < 0.15,
            commit=rng.choice((None, None, True, False)),
            stall_s=rng.uniform(0, 2) if rng.random() < 0.1 else 0.0,
            pause_s=rng.uniform(0, 0.25),
        )
        for _ in range(80)
    ]


def _memberships(rng: random.Random) -> Sequence[Work]:
    found = [
        Membership(index, rng.randrange(15), rng.random() < 0.6, rng.uniform(0, 1))
        for index in range(MEMBERS)
        for _ in range(8)
    ]
    protocol: Literal["classic", "consumer"] = "classic" if rng.random() < 0.5 else "consumer"
    return [msgspec.structs.replace(work, protocol=protocol) for work in found]


_FEATURES: dict[str, Callable[[random.Random], Sequence[Work]]] = {
    "trim": _trims,
    "retain": _retains,
    "compact": _puts,
    "members": _memberships,
}


def _administration(seed: int, *, all_return: bool) -> list[Work]:
    """Return elections, and topics with replicas on all brokers, which need all brokers in the end."""
    rng = random.Random(f"administration {seed}")
    work: list[Work] = []
    if rng.random() < 0.4:
        work += [Elect(rng.sample(range(PARTITIONS), 2), rng.uniform(0, 4)) for _ in range(4)]
    if all_return and rng.random() < 0.4:
        work += [Recreate(rng.randrange(1, 3), rng.randrange(2), rng.randrange(4), rng.uniform(0, 3)) for _ in range(3)]
    return work


def _transaction(writer: int, rng: random.Random) -> Transaction:
    return Transaction(
        writer=writer,
        partitions=rng.sample(range(PARTITIONS), rng.randrange(1, PARTITIONS + 1)),
        offset=rng.random() < 0.5,
        stall_s=rng.uniform(0, 2) if rng.random() < 0.1 else 0.0,
        commit=rng.random() < 0.7,
        pause_s=rng.uniform(0, 0.3),
    )


def _faults(rng: random.Random) -> list[AnyFault]:
    """Return faults of a few kinds at random times. In some worlds, one of them is permanent."""
    faults: list[AnyFault] = []
    hosts = HOSTS
    if rng.random() < 0.3:
        gone = rng.choice(HOSTS)
        hosts = tuple(host for host in HOSTS if host != gone)  # a start of it might never end
        at = rng.uniform(0, SECONDS)
        faults.append(
            rng.choice((Kill(at=at, host=gone), Pause(at=at, host=gone), CutStore(at=at, host=gone, loses="requests")))
        )
    if rng.random() < 0.3:
        faults.append(
            Skew(
                at=0.0,
                host=rng.choice(HOSTS),
                rate=rng.uniform(0.9, 1.1),
                boot_s=rng.uniform(0, 1000),
                drift=rng.uniform(-0.01, 0.01),
                wall_ms=rng.randrange(-600_000, 600_000),
            )
        )
    kinds = rng.sample(KINDS, rng.randrange(3, 7)) + rng.sample(STORE_KINDS, rng.randrange(3))
    times = sorted(rng.uniform(0, SECONDS) for _ in range(rng.randint(*FAULTS)))
    for at in times:
        faults += _fault(rng.choice(kinds), at, hosts, rng)
    if rng.random() < 0.2:
        faults.append(SetClock(at=rng.uniform(0, SECONDS), host=rng.choice(HOSTS), ms=rng.randrange(-5000, 5000)))
    return faults


def _damages(seed: int, hosts: list[str]) -> list[AnyFault]:
    """Return faults that damage the files of brokers while they do not run."""
    rng = random.Random(f"damage {seed}")
    faults: list[AnyFault] = []
    if rng.random() >= DAMAGED_SHARE:
        return faults
    topics = ("t", "t", "t", "__consumer_offsets", "__transaction_state")
    for _ in range(rng.randint(1, 3)):
        host, at, seconds = rng.choice(hosts), rng.uniform(2, SECONDS), rng.choice((0.5, 2.5, 4.0))
        if rng.random() < 0.4:
            faults.append(Copy(at=rng.uniform(1, at), host=host, folder=DATA))
            faults.append(Restore(at=at, host=host, folder=DATA, seconds=seconds))
        else:
            folder = f"{DATA}/{rng.choice(topics)}-{rng.randrange(2)}"
            torn_at = rng.choice((None, rng.random(), 1.0))
            faults.append(Damage(at=at, host=host, folder=folder, torn_at=torn_at, seconds=seconds))
    return faults


def _fault(kind: str, at: float, hosts: tuple[str, ...], rng: random.Random) -> list[AnyFault]:
    """Return a fault of a kind, or several faults that together reach a state that one fault rarely reaches."""
    host = rng.choice(hosts)
    others = [each for each in HOSTS if each != host]
    seconds = rng.choice((0.5, 1.0, 2.5, 4.0))
    match kind:
        case "isolate":  # clients and the store still reach the leader
            return [Cut(at=at, source=host, target=other, seconds=seconds) for other in others]
        case "failover":  # two elections, before followers have fetched from the first leader
            second = rng.choice(others)
            cut = [Cut(at=at, source=second, target=each, seconds=0.5) for each in HOSTS if each != second]
            later = at + rng.uniform(0, 0.4)
            return [*cut, ExpireSessions(at=at, host=host), ExpireSessions(at=later, host=second)]
        case "unknown":  # a leader does not learn that a follower has joined, and the follower lags again
            follower, at = rng.choice(others), at / 4
            return [
                Cut(at=at, source=host, target=follower, seconds=2.5),
                CutStore(at=at + 2.5, host=host, loses="answers", seconds=8.0),
                Cut(at=at + rng.uniform(6, 8), source=host, target=follower, seconds=3.0),
            ]
        case _:
            return [_single(kind, at, hosts, rng)]


def _single(kind: str, at: float, hosts: tuple[str, ...], rng: random.Random) -> AnyFault:
    host, seconds = rng.choice(hosts), rng.choice((0.1, 0.5, 1.0, 2.5, 4.0))
    peer = rng.choice([each for each in (*HOSTS, "client") if each != host])
    source, target = rng.choice(((host, peer), (peer, host)))
    restarts = tuple(rng.randrange(30) for _ in range(2) if rng.random() < 0.3)
    match kind:
        case "kill":
            return Kill(at=at, host=host, seconds=seconds, restarts=restarts)
        case "crash":
            return Crash(at=at, host=host, seconds=seconds, restarts=restarts)
        case "die":
            return Die(at=at, host=host, changes=rng.randrange(60), seconds=seconds, restarts=restarts)
        case "pause":
            return Pause(at=at, host=host, seconds=seconds)
        case "cut":
            return Cut(at=at, source=source, target=target, seconds=seconds)
        case "one way":
            return Cut(at=at, source=source, target=target, both_ways=False, seconds=seconds)
        case "slow":
            return Slow(at=at, source=source, target=target, by_s=rng.uniform(0, 0.5), seconds=seconds)
        case "limit":
            rate = rng.choice((2_000.0, 50_000.0))
            return Limit(at=at, source=source, target=target, bytes_per_s=rate, seconds=seconds)
        case "reset":
            return Reset(at=at, host=rng.choice((None, host)))
        case "requests":
            return CutStore(at=at, host=host, loses="requests", seconds=seconds)
        case "answers":
            return CutStore(at=at, host=host, loses="answers", seconds=seconds)
        case "lose":
            return LoseAnswers(at=at, host=host, count=rng.randrange(1, 4))
        case _:
            return ExpireSessions(at=at, host=host)
