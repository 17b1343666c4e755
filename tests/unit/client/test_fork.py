"""A producer in a process that was forked after it was made."""

from __future__ import annotations

import os
import warnings

from oncelog import Producer, errors


def test_a_child_is_told_that_its_parents_producer_does_not_send() -> None:
    producer = Producer("nobody:1")
    producer._sender.counts["t"] = 1
    with warnings.catch_warnings():  # newer Pythons warn of every fork beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        status = 1
        try:
            producer.send("t", b"x")
        except errors.UsageError as error:
            status = 0 if "fork" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not producer.send("t", b"x").done()
    producer._thread.run(producer._sender._hang_up())
