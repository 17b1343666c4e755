"""KIP-939 with Kafka's Java client: prepare, die, come back and end the transaction. Apache Kafka does not serve it."""

from __future__ import annotations

import subprocess

import pytest

from oncelog import Consumer, Producer, errors
from support.java_programs import java_program
from support.servers import Server
from support.transactions import TWO_PHASE_SETTINGS, describe, pass_timeout
from support.wire import Wire

SERVERS = ("oncelog",)
SETTINGS = TWO_PHASE_SETTINGS
KILLED = 137


def two_phase(*arguments: str, status: int = 0) -> str:
    """Run the program, and return what it printed."""
    command = java_program("twophase", "TwoPhase", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def test_apache_kafka_is_said_not_to_serve_it(apache_kafka: Server, name: str) -> None:
    for option in ("transaction_two_phase_commit_enable", "keep_prepared_transaction"):
        with pytest.raises(errors.UnsupportedError, match="does not serve two-phase commit"):
            Producer(apache_kafka.bootstrap, transactional_id=name, **{option: True})


@pytest.mark.parametrize("commit", [True, False])
def test_java_ends_its_transaction_after_a_crash_of_both(module_server: Server, name: str, commit: bool) -> None:
    """The timeout of a usual transaction passes meanwhile."""
    with Wire(module_server.bootstrap) as wire:
        wire.create_topic(name)
    state = two_phase("prepare", module_server.bootstrap, name, name, "a", "b", status=KILLED)
    module_server.kill()
    module_server.wait_ready()
    with Wire(module_server.bootstrap) as wire:
        pass_timeout(wire, name, 1000)
        assert describe(wire, name).transaction_state == "Ongoing"
    known = state if commit else "0:0"
    done = two_phase("complete", module_server.bootstrap, name, known, name)
    assert done == ("committed" if commit else "aborted")
    with Consumer(module_server.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign({(name, 0): 0})
        values: list[bytes] = []
        while b"next" not in values:
            values += [record.value for record in consumer.poll(1.0) if record.value is not None]
    assert values == ([b"a", b"b", b"next"] if commit else [b"next"])
