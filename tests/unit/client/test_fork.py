"""A producer in a process that was forked after it was made."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable

from oncelog import Producer, errors
from oncelog.client.blocking import LoopThread


def told_in_a_child(work: Callable[[], object]) -> bool:
    """Whether `work` raises UsageError, and names the fork, in a child of this process."""
    with warnings.catch_warnings():  # newer Pythons warn of every fork beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        status = 1
        try:
            work()
        except errors.UsageError as error:
            status = 0 if "fork" in str(error) else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_a_child_starts_on_its_parents_loop_is_refused() -> None:
    thread = LoopThread.shared()
    thread.run(asyncio.sleep(0))
    assert told_in_a_child(lambda: thread.start(asyncio.sleep(0)))


def test_a_child_is_told_that_its_parents_producer_does_not_send() -> None:
    producer = Producer("nobody:1")
    producer._sender.counts["t"] = 1
    assert told_in_a_child(lambda: producer.send("t", b"x"))
    assert not producer.send("t", b"x").done()
    producer._thread.run(producer._sender._hang_up())
