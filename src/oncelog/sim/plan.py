"""A plan says what happens in a world: its settings, its workload, and its faults with their times.

A seed expands into a plan. A plan can be saved as JSON, changed, shrunk, and run again: the same plan and the same
commit give the same world, in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from oncelog.sim.faults import AnyFault, Time

T = TypeVar("T")

FORMAT = 1
MAX_BYTES = 64 * 1024 * 1024
"""The largest file that is read as a plan."""

Entries = Annotated[list[T], msgspec.Meta(max_length=100_000)]


class PlanError(Exception):
    """A file is not a valid plan. The message says where and why."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One world. `scenario` names the code that runs `workload`, whose entries it defines."""

    format: int = FORMAT
    scenario: str
    seed: int
    """Determines everything that the plan does not say, such as latencies."""
    seconds: Time
    """When the faults end, except those that are permanent."""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    workload: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=100_000)]
    faults: Annotated[list[AnyFault], msgspec.Meta(max_length=100_000)]

    def encode(self) -> bytes:
        """Return the plan as JSON, with one entry per line."""
        entries = {
            name: "[\n  " + ",\n  ".join(msgspec.json.encode(each).decode() for each in getattr(self, name)) + "\n ]"
            for name in ("workload", "faults")
        }
        lines = [
            f' "{name}": {entries.get(name) or msgspec.json.encode(getattr(self, name)).decode()}'
            for name in self.__struct_fields__
        ]
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()

    def shrunk(self, fails: Callable[[Plan], bool]) -> Plan:
        """Return a plan for which `fails` is true, but false if any one of its entries is removed. See `ddmin`."""
        entries = [("workload", each) for each in self.workload] + [("faults", each) for each in self.faults]

        def plan(kept: Sequence[tuple[str, Any]]) -> Plan:
            workload = [each for kind, each in kept if kind == "workload"]
            return msgspec.structs.replace(self, workload=workload, faults=[e for kind, e in kept if kind == "faults"])

        return plan(ddmin(entries, lambda kept: fails(plan(kept))))


def decode(data: bytes, scenario: str) -> Plan:
    """Read a plan of a scenario. Raises PlanError."""
    if len(data) > MAX_BYTES:
        raise PlanError(f"a plan has at most {MAX_BYTES} bytes, this one has {len(data)}")
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PlanError(f"not a plan: {error}") from error
    if plan.format != FORMAT:
        raise PlanError(f"the plan has format {plan.format}; this version reads format {FORMAT}")
    if plan.scenario != scenario:
        raise PlanError(f"the plan is for the scenario {plan.scenario!r}, not for {scenario!r}")
    return plan


def ddmin(entries: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return some of the entries. `fails` is true for them, but false if any one of them is removed.

    `fails` must be true for all entries together.

    This is delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002).
    """
    left = list(entries)
    if left and fails([]):
        return []
    parts = 2
    while len(left) > 1:
        size = -(-len(left) // parts)
        starts = range(0, len(left), size)
        for start in starts:
            rest = left[:start] + left[start + size :]
            if rest and fails(rest):
                left, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                return left
            parts = min(2 * parts, len(left))
    return left
