"""The faults that a plan may contain. Each is one entry of the plan's JSON, with its time and what it does.

A fault with a field `seconds` ends after that time. Without a value, it is permanent: it remains when the world heals.
The docstring of a class describes the entry with its tag, for example `{"fault": "kill", "at": 1.5, "host": "a"}`.
"""

from __future__ import annotations

import errno
from typing import Annotated, Literal

import msgspec

from oncelog.sim import damage
from oncelog.sim.machine import Machine
from oncelog.sim.world import World

DAY_S = 86_400.0

Time = Annotated[float, msgspec.Meta(ge=0, le=DAY_S)]
"""Seconds of the world's time."""
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Milliseconds = Annotated[int, msgspec.Meta(ge=-(10**12), le=10**12)]
Factor = Annotated[float, msgspec.Meta(gt=0, le=1000)]


class UnknownHostError(Exception):
    """A fault names a machine that the world does not have."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="fault"):
    """An event at one moment."""

    at: Time

    def strike(self, world: World) -> None:
        """Apply the fault. A lasting fault may strike again while it lasts."""
        self._strike(world)

    def _strike(self, world: World) -> None:
        raise NotImplementedError


class Lasting(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault that lasts for some seconds, or forever."""

    seconds: Time | None = None

    def key(self) -> tuple[str, ...]:
        """Return a key for the affected object. If a fault ends, other faults with the same key continue."""
        return self._key()

    async def end(self, world: World) -> None:
        """Undo the fault."""
        await self._end(world)

    def _key(self) -> tuple[str, ...]:
        raise NotImplementedError

    async def _end(self, world: World) -> None:
        raise NotImplementedError


def machine_of(world: World, host: str) -> Machine:
    """Return a machine of the world. Raises UnknownHostError."""
    machine = world.machines.get(host)
    if machine is None:
        raise UnknownHostError(f"the plan names the host {host!r}; the world has {', '.join(sorted(world.machines))}")
    return machine


# -- processes and machines --------------------------------------------------------------------------------------------


class _Stop(Lasting, frozen=True, kw_only=True):
    """A host whose process ends, and starts again after `seconds`.

    Each number in `restarts` adds a start. It dies in the middle of a disk change, after that number of other changes.
    """

    host: str
    restarts: Annotated[tuple[Count, ...], msgspec.Meta(max_length=100)] = ()

    def _key(self) -> tuple[str, ...]:
        return "process", self.host

    async def _end(self, world: World) -> None:
        machine = machine_of(world, self.host)
        machine.disk.spare()
        for changes in self.restarts:
            if not machine.alive:
                await machine.start(die_in=changes)
                machine.disk.spare()  # the start may need fewer changes
        while not machine.alive:
            await machine.start()


class Kill(_Stop, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="kill"):
    """Kill the process of a host, as with `kill -9`."""

    def _strike(self, world: World) -> None:
        machine_of(world, self.host).kill()


class Crash(_Stop, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="crash"):
    """Cut the power of a host. It loses a part of what is not synced."""

    def _strike(self, world: World) -> None:
        machine_of(world, self.host).crash()


class Die(_Stop, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="die"):
    """Kill the process of a host in the middle of a disk change, after `changes` further ones."""

    changes: Count

    def _strike(self, world: World) -> None:
        machine_of(world, self.host).die_in(self.changes)


class Damage(_Stop, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="damage"):
    """Kill the process of a host. Before it starts again, remove a partition's folder, or cut its log inside a batch.

    `torn_at` says how far from the start of the last segment, from 0 to 1. None removes the folder.
    """

    folder: str
    torn_at: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None

    def _strike(self, world: World) -> None:
        machine = machine_of(world, self.host)
        machine.kill()
        if self.torn_at is None:
            damage.remove(machine.disk, self.folder)
        else:
            damage.tear(machine.disk, self.folder, self.torn_at)


class Copy(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="copy"):
    """Copy a folder of a host for a later `restore`."""

    host: str
    folder: str

    def _strike(self, world: World) -> None:
        machine = machine_of(world, self.host)
        machine.copies[self.folder] = damage.copy(machine.disk, self.folder)


class Restore(_Stop, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="restore"):
    """Kill the process of a host. Before it starts again, replace a folder by its last copy, if there is one."""

    folder: str

    def _strike(self, world: World) -> None:
        machine = machine_of(world, self.host)
        machine.kill()
        if copied := machine.copies.get(self.folder):
            damage.put_back(machine.disk, self.folder, copied)


class Pause(Lasting, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="pause"):
    """Stop the process of a host, as with SIGSTOP."""

    host: str

    def _key(self) -> tuple[str, ...]:
        return "pause", self.host

    def _strike(self, world: World) -> None:
        machine_of(world, self.host).pause()

    async def _end(self, world: World) -> None:
        machine_of(world, self.host).resume()


class Skew(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="skew"):
    """Give a host wrong clocks before its first start; `at` must be 0. See `Clock`."""

    host: str
    rate: Factor = 1.0
    boot_s: Annotated[float, msgspec.Meta(ge=0, le=10**9)] = 0.0
    drift: Annotated[float, msgspec.Meta(gt=-1, le=1000)] = 0.0
    wall_ms: Milliseconds = 0

    def __post_init__(self) -> None:
        if self.at:
            raise ValueError(f"a skew is there from the start of the world: 'at' must be 0, not {self.at}")

    def _strike(self, world: World) -> None:
        world.skew(self.host, rate=self.rate, boot_s=self.boot_s, drift=self.drift, wall_ms=self.wall_ms)


class SetClock(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="set_clock"):
    """Move the wall clock of a host by `ms`, or of all hosts."""

    ms: Milliseconds
    host: str | None = None

    def _strike(self, world: World) -> None:
        world.set_clock(self.ms, self.host)


# -- the network -------------------------------------------------------------------------------------------------------


class _Link(Lasting, frozen=True, kw_only=True):
    source: str
    target: str
    both_ways: bool = True

    def _key(self) -> tuple[str, ...]:
        return "link", *sorted((self.source, self.target))

    async def _end(self, world: World) -> None:
        world.network.heal(self.source, self.target)


class Cut(_Link, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="cut"):
    """Hold back all bytes from `source` to `target`."""

    def _strike(self, world: World) -> None:
        world.network.cut(self.source, self.target, both_ways=self.both_ways)


class Slow(_Link, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="slow"):
    """Let each piece from `source` to `target` take up to `by_s` longer."""

    by_s: Time

    def _strike(self, world: World) -> None:
        world.network.slow(self.source, self.target, self.by_s, both_ways=self.both_ways)


class Limit(_Link, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="limit"):
    """Limit the bandwidth from `source` to `target`."""

    bytes_per_s: Annotated[float, msgspec.Meta(ge=1, le=10**12)]

    def _strike(self, world: World) -> None:
        world.network.limit(self.source, self.target, self.bytes_per_s, both_ways=self.both_ways)


class Reset(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="reset"):
    """End the connections of a host, or all connections, with an error on both sides."""

    host: str | None = None

    def _strike(self, world: World) -> None:
        world.network.reset(self.host)


# -- disks -------------------------------------------------------------------------------------------------------------


class FailDisk(Lasting, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fail_disk"):
    """Let operations of these kinds on paths with a prefix fail, after `operations` that still succeed."""

    host: str
    kinds: tuple[Literal["read", "write", "sync"], ...]
    error: Literal["EIO", "ENOSPC"] = "EIO"
    operations: Count = 0
    prefix: str = ""

    def _key(self) -> tuple[str, ...]:
        return "disk", self.host

    def _strike(self, world: World) -> None:
        number = getattr(errno, self.error)
        machine_of(world, self.host).disk.fail_in(self.operations, self.kinds, number, self.prefix)

    async def _end(self, world: World) -> None:
        machine_of(world, self.host).disk.heal()


class FlipBit(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="flip_bit"):
    """Flip a random bit of a file whose path has a prefix."""

    host: str
    prefix: str = ""

    def _strike(self, world: World) -> None:
        machine_of(world, self.host).disk.flip_bit(self.prefix)


# -- the metadata store ------------------------------------------------------------------------------------------------


class CutStore(Lasting, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="cut_store"):
    """Lose the requests of a host to the metadata store, or their answers."""

    host: str
    loses: Literal["requests", "answers"]

    def _key(self) -> tuple[str, ...]:
        return "store", self.host

    def _strike(self, world: World) -> None:
        link = world.store_link(self.host)
        link.cut_requests |= self.loses == "requests"
        link.cut_answers |= self.loses == "answers"

    async def _end(self, world: World) -> None:
        link = world.store_link(self.host)
        link.cut_requests = link.cut_answers = False


class LoseAnswers(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="lose_answers"):
    """Lose the answers to the next writes of a host to the metadata store."""

    host: str
    count: Count = 1

    def _strike(self, world: World) -> None:
        world.store_link(self.host).lose_answers += self.count


class ExpireSessions(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="expire_sessions"):
    """End the sessions of a host in the metadata store."""

    host: str

    def _strike(self, world: World) -> None:
        world.store_link(self.host).expire_sessions()


AnyFault = (
    Kill
    | Crash
    | Die
    | Damage
    | Copy
    | Restore
    | Pause
    | Skew
    | SetClock
    | Cut
    | Slow
    | Limit
    | Reset
    | FailDisk
    | FlipBit
    | CutStore
    | LoseAnswers
    | ExpireSessions
)
