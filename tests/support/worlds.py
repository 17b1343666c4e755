"""Run, save, replay and shrink simulated worlds: the command of `scripts/worlds`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from oncelog.sim.faults import UnknownHostError
from oncelog.sim.plan import Plan, PlanError, decode
from support import cluster_plans, cluster_world, transaction_world
from support.replica_invariants import InvariantError


class Scenario(NamedTuple):
    """A kind of world."""

    name: str
    expand: Callable[[int], Plan]
    run_plan: Callable[[Plan], tuple[Counter[str], str]]


SCENARIOS = {
    1: Scenario("transactions", transaction_world.expand, transaction_world.run_plan),
    3: Scenario(cluster_plans.SCENARIO, cluster_plans.expand, cluster_world.run_plan),
}
"""The scenarios by the number of their brokers."""


def failure_of(scenario: Scenario, plan: Plan) -> str | None:
    """Run a plan. Return the violated invariant, or the kind of the failure and the function that has found it.

    Return None if the plan passes.
    """
    try:
        scenario.run_plan(plan)
    except (KeyboardInterrupt, PlanError, UnknownHostError):
        raise
    except InvariantError as error:
        return f"invariant {error.number}"
    except BaseException as error:  # noqa: BLE001 - the failure of a world may be of any kind
        frames = traceback.extract_tb(error.__traceback__)
        return f"{type(error).__name__} in {frames[-1].name}"
    return None


def shrink(scenario: Scenario, plan: Plan) -> Plan:
    """Return the smallest plan that fails in the same way."""
    wanted, runs = failure_of(scenario, plan), 0

    def fails(smaller: Plan) -> bool:
        nonlocal runs
        runs += 1
        return failure_of(scenario, smaller) == wanted

    smallest = plan if wanted is None else plan.shrunk(fails)
    entries = [len(each.workload) + len(each.faults) for each in (plan, smallest)]
    print(f"{wanted or 'the plan passes'}: {entries[1]} of {entries[0]} entries left, after {runs} runs", flush=True)
    return smallest


def replay(scenario: Scenario, plan: Plan) -> None:
    """Run one plan, and print its outcomes and its digest."""
    outcomes, digest = scenario.run_plan(plan)
    print(f"seed {plan.seed}: digest {digest}, {dict(outcomes)}")


def run_seeds(scenario: Scenario, first: int, count: int) -> Plan | None:
    """Run the worlds of many seeds. Return the plan of the first that fails, after its traceback."""
    began, used, total = time.monotonic(), time.process_time(), Counter[str]()
    for seed in range(first, first + count):
        plan = scenario.expand(seed)
        try:
            total += scenario.run_plan(plan)[0]
        except Exception:  # noqa: BLE001 - the failure of a world may be of any kind
            traceback.print_exc()
            print(f"seed {seed} fails", file=sys.stderr)
            return plan
        if (seed - first) % 100 == 99 or seed == first + count - 1:
            done = seed - first + 1
            speed = [60 * done / passed for passed in (time.monotonic() - began, time.process_time() - used)]
            print(f"{done} worlds, {speed[0]:.0f} a minute, {speed[1]:.0f} a minute of CPU, {dict(total)}", flush=True)
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Return its exit status."""
    parser = argparse.ArgumentParser(prog="scripts/worlds", description=__doc__)
    parser.add_argument("first", nargs="?", type=int, default=0, metavar="FIRST", help="the first seed (default: 0)")
    parser.add_argument("count", nargs="?", type=int, metavar="COUNT", help="how many (default: 1000)")
    parser.add_argument("--seeds", type=int, metavar="COUNT", help="the same as COUNT")
    parser.add_argument("--brokers", type=int, choices=SCENARIOS, default=1, help="how many brokers (default: 1)")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="run the plan in this file instead of seeds")
    parser.add_argument("--save", type=Path, metavar="FILE", help="save the failing plan, or that of FIRST alone")
    parser.add_argument("--shrink", action="store_true", help="shrink a failing plan to the entries that it needs")
    options = parser.parse_args(arguments)
    if None not in (options.count, options.seeds):
        parser.error("COUNT and --seeds are the same; give only one of them")
    options.count = options.seeds if options.count is None else options.count
    former = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        return _run(options)
    except (PlanError, UnknownHostError, OSError) as error:
        print(f"scripts/worlds: {error}", file=sys.stderr)
        return 2
    finally:
        logging.disable(former)


def _run(options: argparse.Namespace) -> int:
    failed: Plan | None
    scenario = SCENARIOS[options.brokers]
    if options.plan is not None:
        plan = decode(options.plan.read_bytes(), scenario.name)
        if not options.shrink:
            if options.save is not None:
                options.save.write_bytes(plan.encode())
            replay(scenario, plan)
            return 0
        failed = plan
    elif options.save is not None and options.count is None and not options.shrink:
        options.save.write_bytes(scenario.expand(options.first).encode())
        print(f"saved the plan of seed {options.first} in {options.save}")
        return 0
    else:
        failed = run_seeds(scenario, options.first, 1000 if options.count is None else options.count)
        if failed is None:
            return 0
    if options.shrink:
        failed = shrink(scenario, failed)
        if options.save is None:
            print(failed.encode().decode(), end="")
    if options.save is not None:
        options.save.write_bytes(failed.encode())
        command = f"scripts/worlds --brokers {options.brokers} --plan {options.save}"
        print(f"saved the plan in {options.save}; run it with {command}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
