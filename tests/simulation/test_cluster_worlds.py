"""Three brokers with producers, transactions and groups, and at least ten faults each.

`scripts/worlds --brokers 3 --seeds N` runs any number of other seeds, and shrinks the plan of one that fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from oncelog.cluster.brokers import BrokerInfo
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.store_memory import MemoryStore
from oncelog.sim.disk import Content
from oncelog.sim.faults import AnyFault, Copy, Crash, Cut, CutStore, Damage, Die, Kill, Limit, Pause, Restore, Slow
from oncelog.sim.plan import PlanError, decode
from support import cluster_mutations, many_partitions, worlds
from support.cluster_plans import FAULTS, SCENARIO, Commits, Put, Transaction, Trim, expand
from support.cluster_watch import DiskWatch, StateWatch
from support.cluster_world import run_plan
from support.replica_invariants import InvariantError
from support.wire import batch

ROOT = Path(__file__).resolve().parents[2]
SEEDS, SEEDS_A_TEST = 30, 5
"""Each change runs this many worlds from seed 0 on, and as many others.

The first 17 find every bug of `cluster_mutations` that is found by chance. `scripts/nightly` runs all seeds in turn.
"""


def fresh_seed() -> int:
    """Return the first seed of this content of the sources, so that a repeated run has the same worlds."""
    found = sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        found.update(path.read_bytes())
    return 1000 + int.from_bytes(found.digest()[:2], "big") * SEEDS


def test_plan_has_ten_faults_and_survives_json() -> None:
    for seed in range(100):
        plan = expand(seed)
        assert len(plan.faults) >= FAULTS[0] >= 10
        assert decode(plan.encode(), SCENARIO) == plan == expand(seed)


def run_seed(seed: int) -> Counter[str]:
    """Run the world of a seed. A failure names the command that repeats it."""
    try:
        return run_plan(expand(seed))[0]
    except BaseException as error:
        error.add_note(f"seed {seed} fails; run it again with: scripts/worlds --brokers 3 {seed} 1")
        raise


@pytest.mark.parametrize("first", [first + n for first in (0, fresh_seed()) for n in range(0, SEEDS, SEEDS_A_TEST)])
def test_invariants_hold(first: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(first, first + SEEDS_A_TEST):
        total += run_seed(seed)
    assert min(total[what] for what in ("numbers", "commits", "committed", "aborted")) > 0


def test_acknowledged_records_of_many_partitions_survive_kills() -> None:
    """`scripts/nightly` runs such worlds with 10,000 partitions."""
    assert many_partitions.run_world(0, partitions=200) >= 600


def test_failure_names_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster_mutations.session_unchecked(monkeypatch)
    with pytest.raises(InvariantError) as caught:
        run_seed(0)
    [note] = caught.value.__notes__
    command = note.partition("scripts/worlds ")[2].split()
    assert worlds.main(command) == 1


@pytest.mark.parametrize(
    ("seed", "counts"),
    [
        (1, ("deletions", "joins", "team commits")),
        (9, ("consumers' joins", "team commits")),
        (10, ("deletions", "compacted")),
    ],
)
def test_features_of_a_world_are_used(seed: int, counts: tuple[str, ...]) -> None:
    outcomes = run_seed(seed)
    assert all(outcomes[count] > 0 for count in counts), outcomes


def test_plan_gives_the_same_world_in_any_process(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan = expand(1)
    file.write_bytes(msgspec.structs.replace(plan, seconds=3.0, workload=plan.workload[::3]).encode())
    outputs = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "support.worlds", "--brokers", "3", "--plan", str(file)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert "digest" in outputs.pop()


@pytest.mark.parametrize(("field", "value"), [("workload", [{"work": "sleep"}]), ("settings", {"broker": 1})])
def test_wrong_plan_is_rejected(field: str, value: object) -> None:
    with pytest.raises(PlanError, match="cluster: "):
        run_plan(msgspec.structs.replace(expand(1), **{field: value}))


def struck(*faults: AnyFault) -> tuple[int, int]:
    """Run a world without a workload, with these faults. Return how many struck, and how many machines crashed."""
    outcomes, _ = run_plan(msgspec.structs.replace(expand(22045), seconds=6.0, workload=[], faults=list(faults)))
    return outcomes["faults"], outcomes["crashes"]


def test_crash_that_could_lose_records_kills_only_the_process() -> None:
    """Nothing is synced: after broker 1 has left the ISRs, the records of broker 2 may be the only ones."""
    crash = Crash(at=4.0, host="broker-2", seconds=0.5)
    assert struck(Kill(at=0.5, host="broker-1", seconds=5.0), crash) == (2, 0)


DAMAGES: dict[str, list[AnyFault]] = {
    "torn log": [Damage(at=4.0, host="broker-2", folder="data/t-0", torn_at=0.5, seconds=0.1)],
    "old copy": [
        Copy(at=1.0, host="broker-2", folder="data"),
        Restore(at=4.0, host="broker-2", folder="data", seconds=0.1),
    ],
}


@pytest.mark.parametrize("is_ignored", [False, True])
@pytest.mark.parametrize("kind", DAMAGES)
def test_world_finds_a_damaged_replica_that_leads(kind: str, is_ignored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The damaged broker starts while the others are down."""
    if is_ignored:
        monkeypatch.setattr(BrokerInfo, "may_lack", lambda _info, _topic, _partition: False)
    others: list[AnyFault] = [Kill(at=3.9, host=host, seconds=4.0) for host in ("broker-1", "broker-3")]
    plan = expand(1)
    plan = msgspec.structs.replace(
        plan, seconds=9.0, workload=plan.workload[::2], faults=[*DAMAGES[kind][:-1], *others, DAMAGES[kind][-1]]
    )
    if is_ignored:
        with pytest.raises(InvariantError, match="invariant 2: broker 2"):
            run_plan(plan)
    else:
        assert run_plan(plan)[0]["damaged"] == 1


def test_no_replica_is_damaged_while_the_other_one_died_during_a_write() -> None:
    """Broker 3, the only eligible replica, has a torn log. So broker 2 must not lose its own (world 80147)."""
    partition, content = ("t", 0), Content(bytearray(batch([b"x"])))
    machines = {number: SimpleNamespace(disk=SimpleNamespace(files={}, changes=0)) for number in (2, 3)}
    disk = machines[3].disk
    disk.files[f"data/t-0/{0:020}.log"] = content
    world: Any = SimpleNamespace(store=MemoryStore(lambda: 0), brokers=machines)
    disks = DiskWatch(world)
    disks.leaders[partition][-1] = 3
    watch = StateWatch(world, disks, Mock())
    watch.states[partition] = PartitionState(2, 1, (2,), elr=(3,))
    for torn, may in (b"", True), (b"\0", False):
        content.data += torn
        content.changed()
        disk.changes += 1
        assert watch.may_lose(2, partition, gone=()) is may
        assert not watch.may_lose(2, partition, gone=(3,))


def test_no_session_ends_while_a_crashed_replica_may_lack_records() -> None:
    """The crashed replica could become the last one in sync, also if a second crash only kills (seed 54413)."""
    crash, later = Crash(at=0.5, host="broker-1", seconds=2.0), (Crash, Kill, Pause)
    assert [struck(crash, kind(at=0.6, host="broker-2", seconds=0.5)) for kind in later] == [(1, 1)] * 3


def test_no_machine_crashes_while_a_broker_that_never_returns_is_in_sync() -> None:
    """Broker 1 would leave the ISRs after its crash (seed 22045, shrunk)."""
    crash = Crash(at=1.9086, host="broker-1", seconds=0.5, restarts=(20,))
    assert struck(Kill(at=0.7377, host="broker-3"), crash) == (1, 0)


def test_no_broker_disappears_for_good_while_another_is_not_well() -> None:
    """The ISRs still contain the other broker, which has died, will die or loses its session (seed 32108)."""
    gone = Pause(at=1.2, host="broker-2")
    assert struck(gone) == (1, 0)
    ill = (
        Kill(at=1.0, host="broker-1", seconds=0.5),
        Die(at=1.0, host="broker-1", changes=1000, seconds=0.5),
        Pause(at=1.0, host="broker-1", seconds=0.5),
        CutStore(at=1.0, host="broker-1", loses="requests", seconds=0.5),
    )
    assert [struck(fault, gone) for fault in ill] == [(1, 0)] * 4


def test_bug_is_found() -> None:
    """The bug is in a module that no build compiles."""
    assert cluster_mutations.first_found(cluster_mutations.session_unchecked, range(2)) == (0, "invariant 11")


def test_slow_follower_does_not_join_and_leave_in_turns() -> None:
    """The high watermark waits for broker 2, and broker 3 has its records but lags (seed 1111, shrunk)."""
    pairs = ([0, 2], 0.247), ([1, 2], 0.1386), ([2, 0, 1], 0.1895)
    work = [
        *(Transaction(1 + (index > 1), pair, False, 0.0, True, pause) for index, (pair, pause) in enumerate(pairs)),
        *(Commits(0, count, pause) for count, pause in ((2, 0.18), (2, 0.3566), (3, 0.5861))),
        *(Commits(1, count, pause) for count, pause in ((4, 0.0813), (3, 0.5152))),
    ]
    faults = [
        Slow(at=0.3688, source="broker-1", target="broker-3", by_s=0.19, seconds=2.5),
        Limit(at=1.1547, source="broker-2", target="broker-1", bytes_per_s=2000.0, seconds=0.5),
    ]
    workload = [msgspec.to_builtins(each) for each in work]
    run_plan(msgspec.structs.replace(expand(1111), seconds=3.3, workload=workload, faults=faults))


def test_replica_without_records_keeps_the_start_of_its_leaders_log() -> None:
    """The leader has deleted all records before broker 2 has any, and broker 2 joins the ISR (seed 166, shrunk)."""
    workload = [msgspec.to_builtins(Trim(count=1, keep=0, pause_s=0.35))]
    faults = [Cut(at=0.2082, source="broker-2", target="broker-3", seconds=4.0)]
    outcomes, _ = run_plan(msgspec.structs.replace(expand(166), seconds=5.5, workload=workload, faults=faults))
    assert outcomes["deletions"] == 1


def test_killed_follower_that_leads_keeps_records_deleted() -> None:
    """All brokers are killed after the answer of DeleteRecords, and the leader does not return (seed 21981, shrunk)."""
    workload = [msgspec.to_builtins(each) for each in (Trim(10, 3, 0.1), *[Trim(0, 3, 2.0)] * 2)]
    faults = [Kill(at=0.6, host=f"broker-{number}", seconds=away) for number, away in ((1, 0.1), (2, 0.1), (3, 4.0))]
    outcomes, _ = run_plan(msgspec.structs.replace(expand(21981), seconds=5.0, workload=workload, faults=faults))
    assert outcomes["deletions"] == 1


def test_former_leader_drops_what_the_new_leader_has_deleted() -> None:
    """Broker 1 writes a record while it is cut off. Broker 2 then deletes its own record there (seed 25683, shrunk)."""
    work = [Trim(4, 1, 0.53), Trim(1, 20, 0.45), Trim(1, 0, 0.59), Trim(1, 1, 0.36), Trim(6, 5, 0.44), Trim(2, 1, 0.47)]
    workload = [msgspec.to_builtins(each) for each in work]
    faults = [
        Cut(at=2.933, source="broker-1", target="broker-2", seconds=4.0),
        Kill(at=3.337, host="broker-1", seconds=1.0),
    ]
    outcomes, _ = run_plan(msgspec.structs.replace(expand(25683), seconds=12.0, workload=workload, faults=faults))
    assert outcomes["deletions"] > 1


def test_compaction_beyond_an_open_transaction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Key 0 has a committed value. Its next value is undecided while segments roll, and is aborted later."""
    puts = [Put(0, False, None, 0.0, 0.1), *(Put(0, False, False, 1.5, 0.1, others=12) for _ in range(2))]
    plan = expand(5)
    workload = [msgspec.to_builtins(each) for each in puts]
    plan = msgspec.structs.replace(plan, seconds=6.0, workload=workload, faults=[])
    assert run_plan(plan)[0]["compacted"] > 0
    cluster_mutations.undecided_records_are_compacted(monkeypatch)
    with pytest.raises(InvariantError, match="invariant 14"):
        run_plan(plan)


def test_deletion_that_is_answered_before_followers_have_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The followers are cut off when the records are deleted, and the leader, broker 3, dies before they return."""
    brokers = "broker-1", "broker-2", "broker-3"
    cuts = [Cut(at=0.9, source=one, target=two, seconds=2.1) for one, two in combinations(brokers, 2)]
    workload = [msgspec.to_builtins(each) for each in (Trim(5, 5, 1.0), Trim(0, 0, 3.0))]
    faults = [*cuts, Kill(at=1.9, host="broker-3", seconds=4.0)]
    plan = msgspec.structs.replace(expand(6), seconds=6.0, workload=workload, faults=faults)
    assert run_plan(plan)[0]["deletions"] == 1
    cluster_mutations.deletion_is_answered_at_once(monkeypatch)
    with pytest.raises(InvariantError, match="invariant 13"):
        run_plan(plan)
