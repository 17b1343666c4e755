"""Plans: they are explicit, replay in any process, and shrink to what a failure needs."""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from oncelog.sim import faults
from oncelog.sim.faults import AnyFault, Crash, Cut, Kill, Pause, Reset, UnknownHostError
from oncelog.sim.machine import Machine
from oncelog.sim.nemesis import Nemesis
from oncelog.sim.plan import MAX_BYTES, Plan, PlanError, ddmin, decode
from oncelog.sim.world import World
from support import worlds
from support.toys import call, serve
from support.transaction_world import expand

ROOT = Path(__file__).resolve().parents[2]


def plan(*wanted: AnyFault, workload: Sequence[dict[str, Any]] = (), seconds: float = 20.0, seed: int = 1) -> Plan:
    return Plan(scenario="toy", seed=seed, seconds=seconds, workload=list(workload), faults=list(wanted))


# -- the file ----------------------------------------------------------------------------------------------------------


def test_plan_of_a_seed_is_the_same_after_it_was_saved() -> None:
    made = expand(3)
    assert decode(made.encode(), "transactions") == made == expand(3)
    assert made != expand(4)
    assert len(made.encode().splitlines()) > len(made.workload) + len(made.faults)


VALID = b'{"scenario": "toy", "seed": 1, "seconds": 1, "workload": [], "faults": [%s]}'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a plan"),
        (b"\xff\x00", "not a plan"),
        (b"[" * 100_000, "not a plan"),
        (b'{"scenario": "toy"}', "missing required field `seed`"),
        (VALID % b'{"fault": "explode", "at": 1}', r"'explode'.*\$.faults\[0\].fault"),
        (VALID % b'{"fault": "kill", "at": 1}', r"missing required field `host`.*\$.faults\[0\]"),
        (VALID % b'{"fault": "kill", "at": -1, "host": "a"}', r">= 0.*\$.faults\[0\].at"),
        (VALID % b'{"fault": "kill", "at": 1, "host": "a", "extra": 1}', "unknown field `extra`"),
        (VALID % b'{"fault": "skew", "at": 1, "host": "a"}', "'at' must be 0"),
        (VALID % b'{"fault": "skew", "at": 0, "host": "a", "rate": 0}', "> 0"),
        (VALID % b'{"fault": "fail_disk", "at": 0, "host": "a", "kinds": ["mkdir"]}', "mkdir"),
        (b'{"format": 2, ' + VALID[1:] % b"", "format 2"),
        (VALID.replace(b"toy", b"other") % b"", "'other', not for 'toy'"),
        (bytes(MAX_BYTES + 1), "at most"),
    ],
)
def test_wrong_plan_is_rejected_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        decode(data, "toy")


def test_each_fault_has_a_tag_and_survives_json() -> None:
    kinds = get_args(AnyFault)
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)
    required: dict[str, Any] = {
        "at": 0.0, "host": "a", "changes": 3, "ms": 4, "source": "a", "target": "b", "by_s": 1.0, "bytes_per_s": 9.0,
        "kinds": ("sync",), "loses": "answers", "folder": "data",
    }  # fmt: skip
    made = [kind(**{name: required[name] for name in kind.__struct_fields__ if name in required}) for kind in kinds]
    assert decode(plan(*made).encode(), "toy").faults == made


def test_fault_on_the_page_of_the_simulation_is_valid() -> None:
    page = (ROOT / "docs" / "design" / "simulation.md").read_text()
    [block] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert msgspec.json.decode(block, type=AnyFault) == Cut(
        at=0.4, source="broker-1", target="client", both_ways=False, seconds=0.2
    )


# -- the nemesis -------------------------------------------------------------------------------------------------------


class Beats:
    """A service that beats ten times a second, and a client that calls it. Both note when they succeed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.beats: list[float] = []
        self.calls: list[float] = []

    async def main(self, machine: Machine) -> None:
        async def answer(_: str) -> str:
            return "ok"

        await serve(machine.name, answer)
        while True:
            self.beats.append(self.world.loop.now)
            machine.files.open("f", create=True).pwrite(b"x", 0)
            await asyncio.sleep(0.1)

    async def call(self) -> None:
        while True:
            with suppress(TimeoutError, ConnectionError):
                await call("a", "?", 0.2)
                self.calls.append(self.world.loop.now)
            await asyncio.sleep(0.1)

    def gaps(self, times: list[float]) -> list[tuple[int, int]]:
        """Return from when to when nothing happened, in whole seconds."""
        ends = [*times, self.world.loop.now]
        return [(round(one), round(two)) for one, two in pairwise(ends) if two - one > 0.5]


def beats(made: Plan) -> tuple[list[tuple[int, int]], list[tuple[int, int]], str]:
    world = World(made.seed)

    async def scenario(world: World) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        nemesis, service = Nemesis(world, made), Beats(world)
        await world.machine("a", service.main).start()
        calls = asyncio.create_task(service.call())
        await nemesis.run()
        await asyncio.sleep(5)
        calls.cancel()
        return service.gaps(service.beats), service.gaps(service.calls)

    return *world.run(scenario, limit_s=600), world.digest()


@pytest.mark.parametrize(
    ("struck", "silent", "unreachable"),
    [
        ((), [], []),
        ((Kill(at=5, host="a", seconds=3),), [(5, 8)], [(5, 8)]),
        ((Crash(at=5, host="a", seconds=3),), [(5, 8)], [(5, 8)]),
        ((faults.Die(at=5, host="a", changes=20, seconds=4),), [(7, 9)], [(7, 9)]),
        ((Kill(at=5, host="a", seconds=3, restarts=(0, 0)),), [(5, 8)], [(5, 8)]),
        ((Kill(at=5, host="a", seconds=3), Kill(at=6, host="a", seconds=8)), [(5, 14)], [(5, 14)]),
        ((Kill(at=5, host="a", seconds=100),), [(5, 20)], [(5, 20)]),
        ((Kill(at=5, host="a"),), [(5, 25)], [(5, 25)]),
        ((Kill(at=25, host="a"),), [], []),
        ((Pause(at=5, host="a", seconds=3),), [(5, 8)], [(5, 8)]),
        ((Pause(at=5, host="a", seconds=4), Pause(at=6, host="a", seconds=1)), [(5, 9)], [(5, 9)]),
        ((Cut(at=5, source="a", target="client", both_ways=False, seconds=3),), [], [(5, 8)]),
        ((Cut(at=5, source="a", target="client", seconds=3), Cut(at=6, source="client", target="a")), [], [(5, 25)]),
        ((faults.Slow(at=5, source="client", target="a", by_s=60, seconds=3),), [], [(5, 8)]),
        ((faults.Limit(at=5, source="client", target="a", bytes_per_s=1, seconds=3),), [], [(5, 8)]),
        ((faults.Skew(at=0, host="a", rate=0.1),), "slow", []),
        ((Reset(at=5), faults.SetClock(at=5, ms=9), faults.FlipBit(at=5, host="a")), [], []),
        ((faults.LoseAnswers(at=5, host="a"), faults.ExpireSessions(at=5, host="a")), [], []),
        ((faults.CutStore(at=5, host="a", loses="answers", seconds=1),), [], []),
    ],
)
def test_faults_strike_and_end(struck: Sequence[AnyFault], silent: Any, unreachable: Any) -> None:
    """The plan ends at 20 s. Faults without `seconds` are permanent."""
    found = beats(plan(*struck))
    assert found[1] == unreachable
    assert len(found[0]) > 20 if silent == "slow" else found[0] == silent
    assert found == beats(plan(*struck))


def test_failing_disk_fails_until_it_is_healed() -> None:
    async def scenario(world: World) -> None:
        machine = world.machine("a", lambda _: asyncio.sleep(0))
        fault = faults.FailDisk(at=0, host="a", kinds=("write",), error="ENOSPC", seconds=5)
        await machine.start()
        await asyncio.sleep(1)
        nemesis = asyncio.create_task(Nemesis(world, plan(fault)).run())
        await asyncio.sleep(1)
        with pytest.raises(OSError, match="No space"):
            machine.files.open("f", create=True)
        await asyncio.sleep(5)
        machine.files.open("f", create=True)
        await nemesis

    World(1).run(scenario, limit_s=100)


def test_broker_that_cannot_reach_the_store_starts_later() -> None:
    async def scenario(world: World) -> int:
        made = plan(
            Kill(at=1, host="broker-1", seconds=1), faults.CutStore(at=1, host="broker-1", loses="answers", seconds=8)
        )
        nemesis = Nemesis(world, made)
        broker = await world.start_broker()
        await nemesis.run()
        failed = sum("cannot start: OutcomeUnknownError" in line for line in world.trace)
        await broker.stop()
        return failed

    assert World(1, store_latency_s=(0.001, 0.01)).run(scenario, limit_s=100) > 0


def test_unknown_host_is_named() -> None:
    with pytest.raises(UnknownHostError, match="names the host 'b'; the world has a"):
        beats(plan(Kill(at=1, host="b")))


# -- shrinking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [set(), {0}, {99}, {3, 50}, {10, 11, 12}, {1, 30, 60, 90}, set(range(40))])
def test_ddmin_finds_the_entries_that_matter(wanted: set[int]) -> None:
    runs = 0

    def fails(entries: Sequence[int]) -> bool:
        nonlocal runs
        runs += 1
        assert list(entries) == sorted(entries)
        return wanted <= set(entries)

    assert set(ddmin(range(100), fails)) == wanted
    assert runs < 2000


def failure(made: Plan) -> bool:
    """A wrong service: it acknowledges what it has not synced. It is caught by a crash between a write and a read."""

    async def scenario(world: World) -> bool:
        async def main(machine: Machine) -> None:
            async def answer(line: str) -> str:
                file = machine.files.open("f", create=True)
                if line == "read":
                    return file.pread(100, 0).decode()
                file.pwrite(line.encode(), 0)
                return "ok"

            await serve(machine.name, answer)

        nemesis = Nemesis(world, made)
        await world.machine("a", main).start()
        running = asyncio.create_task(nemesis.run())
        expected = ""
        for step in made.workload:
            await asyncio.sleep(0.05)
            while True:
                with suppress(TimeoutError, ConnectionError):
                    found = await call("a", step["line"], 1)
                    break
                await asyncio.sleep(0.05)
            if step["line"] != "read":
                expected = step["line"]
            elif found != expected:
                running.cancel()
                return True
        await running
        return False

    return World(made.seed).run(scenario, limit_s=600)


def test_failing_plan_shrinks_to_the_entries_that_it_needs() -> None:
    rng = random.Random(1)
    workload = [{"line": rng.choice(["read", f"{number:04}"])} for number in range(60)]
    struck: list[AnyFault] = []
    for _ in range(40):
        at, seconds = rng.uniform(0, 3), rng.uniform(0, 0.3)
        struck.append(rng.choice([Kill(at=at, host="a", seconds=seconds), faults.SetClock(at=at, ms=9), Reset(at=at)]))
    struck[10:10] = [Crash(at=at, host="a", seconds=0.1) for at in (0.7, 1.4, 2.1)]
    plans = [plan(*struck, workload=workload, seconds=4, seed=seed) for seed in range(10)]
    made = next(each for each in plans if failure(each))
    smallest = made.shrunk(failure)
    assert failure(smallest)
    assert [type(fault) for fault in smallest.faults].count(Crash) == 1
    assert len(smallest.workload) + len(smallest.faults) < 10, "of 103; some are left because of the time they take"
    for name in ("workload", "faults"):
        entries = getattr(smallest, name)
        for index in range(len(entries)):
            rest = entries[:index] + entries[index + 1 :]
            assert not failure(msgspec.structs.replace(smallest, **{name: rest})), "each entry is necessary"


# -- the command -------------------------------------------------------------------------------------------------------


def run_in_a_process(hash_seed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "support.worlds", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_plan_gives_the_same_world_in_any_process(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert run_in_a_process("0", "11", "--save", str(file)).returncode == 0
    replays = [run_in_a_process(seed, "--plan", str(file)) for seed in ("1", "2")]
    assert [each.returncode for each in replays] == [0, 0], replays
    assert "digest" in replays[0].stdout
    assert replays[0].stdout == replays[1].stdout
    assert decode(file.read_bytes(), "transactions") == expand(11)


def test_failing_world_is_saved_and_shrunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure is pretended: it needs a Kill and a session of writer 2."""

    def run_plan(made: Plan) -> Any:
        if any(isinstance(fault, Kill) for fault in made.faults):
            assert not any(step.get("writer") == 2 for step in made.workload), "caught"
        return {}, "digest"

    monkeypatch.setitem(worlds.SCENARIOS, 1, worlds.SCENARIOS[1]._replace(run_plan=run_plan))
    file = tmp_path / "plan.json"
    assert worlds.main(["0", "50", "--jobs", "1", "--shrink", "--save", str(file)]) == 1
    assert "AssertionError in run_plan: 2 of" in capsys.readouterr().out
    smallest = decode(file.read_bytes(), "transactions")
    assert (len(smallest.faults), len(smallest.workload)) == (1, 1)
    with pytest.raises(AssertionError, match="caught"):
        worlds.main(["--plan", str(file)])
    assert worlds.main(["--plan", str(file), "--shrink"]) == 1


@pytest.mark.parametrize(("options", "ran"), [([], 4), (["--keep-going"], 10)])
def test_seeds_run_until_one_fails_or_to_their_end(
    options: list[str], ran: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = []

    def run_plan(made: Plan) -> Any:
        seeds.append(made.seed)
        assert made.seed not in (3, 7), "pretended"
        return Counter(), "digest"

    monkeypatch.setitem(worlds.SCENARIOS, 1, worlds.SCENARIOS[1]._replace(run_plan=run_plan))
    assert worlds.main(["0", "10", "--jobs", "1", *options]) == 1
    assert seeds == list(range(ran))
    errors = capsys.readouterr().err
    assert "seed 3 fails" in errors
    assert ("2 of 10 seeds fail: 3 7" in errors) == bool(options)


def test_seeds_run_in_several_processes() -> None:
    done = run_in_a_process("0", "0", "4", "--jobs", "2")
    assert (done.returncode, done.stdout.startswith("4 worlds, ")) == (0, True), done


def test_wrong_file_is_an_error_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"scenario": "transactions"}')
    assert worlds.main(["--plan", str(file)]) == 2
    assert capsys.readouterr().err.startswith("scripts/worlds: not a plan: ")
    file.write_bytes(msgspec.structs.replace(expand(1), workload=[{"work": "sleep"}]).encode())
    assert worlds.main(["--plan", str(file)]) == 2
    assert "not a workload of transactions" in capsys.readouterr().err
    assert worlds.main(["--plan", str(tmp_path / "missing")]) == 2


def test_number_of_seeds_is_given_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        worlds.main(["0", "1", "--seeds", "2"])
    assert "COUNT and --seeds" in capsys.readouterr().err
