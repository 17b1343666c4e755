"""Run, save, replay and shrink simulated worlds: the command of `scripts/worlds`."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from oncelog.sim.faults import UnknownHostError
from oncelog.sim.plan import Plan, PlanError, decode
from support import cluster_plans, cluster_world, permission_world, transaction_world
from support.replica_invariants import InvariantError
from support.world_reports import lines


class Scenario(NamedTuple):
    """A kind of world."""

    name: str
    expand: Callable[[int], Plan]
    run_plan: Callable[[Plan], tuple[Counter[str], str]]


SECURED = "secured"
SCENARIOS: dict[int | str, Scenario] = {
    1: Scenario("transactions", transaction_world.expand, transaction_world.run_plan),
    3: Scenario(cluster_plans.SCENARIO, cluster_plans.expand, cluster_world.run_plan),
    SECURED: Scenario(cluster_plans.SCENARIO, cluster_plans.expand, permission_world.run_plan),
}
"""The scenarios by the number of their brokers. The secured ones have three."""


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
    print(f"seed {plan.seed}: digest {digest}, {lines(outcomes)}")


class Report(NamedTuple):
    """The result of one seed."""

    seed: int
    outcomes: Counter[str]
    cpu_s: float
    failure: str
    """The traceback, or an empty string."""


def run_seed(kind: int | str, seed: int) -> Report:
    """Run the world of one seed, and report its failure."""
    logging.disable(logging.CRITICAL)
    scenario, used = SCENARIOS[kind], time.process_time()
    try:
        outcomes, failure = scenario.run_plan(scenario.expand(seed))[0], ""
    except Exception:  # noqa: BLE001 - the failure of a world may be of any kind
        outcomes, failure = Counter(), traceback.format_exc()
    return Report(seed, outcomes, time.process_time() - used, failure)


def run_seeds(kind: int | str, first: int, count: int, *, jobs: int = 1, keep_going: bool = False) -> list[int]:
    """Run the worlds of many seeds in `jobs` processes. Return the seeds that fail, by default only the first."""
    began, used, total = time.monotonic(), 0.0, Counter[str]()
    failed: list[int] = []
    seeds, run = range(first, first + count), partial(run_seed, kind)
    with ExitStack() as stack:
        reports: Iterable[Report] = map(run, seeds)
        if min(jobs, count) > 1:
            pool = ProcessPoolExecutor(min(jobs, count), multiprocessing.get_context("spawn"))
            stack.callback(pool.shutdown, cancel_futures=True)
            reports = pool.map(run, seeds)
        for done, report in enumerate(reports, 1):
            total += report.outcomes
            used += report.cpu_s
            if report.failure:
                failed.append(report.seed)
                print(f"{report.failure}seed {report.seed} fails", file=sys.stderr, flush=True)
                if not keep_going:
                    break
            if done % 100 == 0 or done == count:
                speed = [60 * done / passed for passed in (time.monotonic() - began, used)]
                speeds = f"{speed[0]:.0f} a minute, {speed[1]:.0f} a minute of CPU"
                print(f"{done} worlds, {len(failed)} failed, {speeds}, {lines(total)}", flush=True)
    if keep_going and failed:
        print(f"{len(failed)} of {count} seeds fail: {' '.join(map(str, sorted(failed)))}", file=sys.stderr)
    return sorted(failed)


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Return its exit status."""
    parser = argparse.ArgumentParser(prog="scripts/worlds", description=__doc__)
    parser.add_argument("first", nargs="?", type=int, default=0, metavar="FIRST", help="the first seed (default: 0)")
    parser.add_argument("count", nargs="?", type=int, metavar="COUNT", help="how many (default: 1000)")
    parser.add_argument("--seeds", type=int, metavar="COUNT", help="the same as COUNT")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="how many brokers (default: 1)")
    secured = "three brokers with logins, and ACLs that change"
    parser.add_argument("--secured", action="store_true", help=secured)
    parser.add_argument("--jobs", type=int, metavar="N", help="how many processes (default: one for each core)")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds, and list those that fail")
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
    kind = SECURED if options.secured else options.brokers
    scenario = SCENARIOS[kind]
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
        count = 1000 if options.count is None else options.count
        jobs = options.jobs or os.cpu_count() or 1
        seeds = run_seeds(kind, options.first, count, jobs=jobs, keep_going=options.keep_going)
        if not seeds:
            return 0
        failed = scenario.expand(seeds[0])
    if options.shrink:
        failed = shrink(scenario, failed)
        if options.save is None:
            print(failed.encode().decode(), end="")
    if options.save is not None:
        options.save.write_bytes(failed.encode())
        which = "--secured" if options.secured else f"--brokers {options.brokers}"
        command = f"scripts/worlds {which} --plan {options.save}"
        print(f"saved the plan in {options.save}; run it with {command}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
