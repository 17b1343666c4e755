"""T1: the coordinator's states and its log, in Kafka's record format. A successor continues from this log."""

from __future__ import annotations

from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from support.servers import Server
from support.transactions import (
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_COMMIT,
    describe,
    ended,
    logged,
    markers,
    state,
    until_state,
    written,
)
from support.wire import Session, Wire, code, until


def test_states_of_a_transaction(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wire.find_coordinator(name)
    assert describe(wire, name).error_code == code("TRANSACTIONAL_ID_NOT_FOUND")
    who = wire.session(name)
    assert state(wire, name) == "Empty"
    written(wire, name, who, name, [b"x"])
    assert state(wire, name) == "Ongoing"
    who = ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    written(wire, name, who, name, [b"x"])
    assert state(wire, name) == "Ongoing"
    ended(wire, name, who, commit=False)
    until_state(wire, name, "CompleteAbort")
    wire.session(name)
    assert state(wire, name) == "Empty"


def test_every_transition_is_a_record_in_kafkas_format(wire: Wire, name: str) -> None:
    """The hash of the id selects the partition. The value's version 1 was introduced with transaction.version 1."""
    wire.create_topic(name, 2)
    who = wire.session(name, timeout_ms=12_345)
    written(wire, name, who, name, [b"x"], partition=1)
    after = ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    records = until(lambda: logged(wire, name), lambda found: len(found) == 4, "four records are in the log")
    assert {version for version, _ in records} == {1}
    values = [value for _, value in records]
    assert [value.transaction_status for value in values] == [EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT]
    assert {value.producer_id for value in values} == {who.producer_id}
    assert [value.producer_epoch for value in values] == [who.epoch, who.epoch, after.epoch, after.epoch]
    assert {value.transaction_timeout_ms for value in values} == {12_345}
    partitions = [
        None
        if value.transaction_partitions is None
        else [(each.topic, list(each.partition_ids)) for each in value.transaction_partitions]
        for value in values
    ]
    assert partitions == [None, [(name, [1])], [(name, [1])], []]
    starts = [value.transaction_start_timestamp_ms for value in values]
    assert starts[0] == -1
    assert starts[1] == starts[2] == starts[3] > 0
    assert [value.client_transaction_version for value in values] == [0, 2, 2, 2]
    assert [value.next_producer_id for value in values] == [-1] * 4


def test_restarted_coordinator_continues_from_its_log(own_server: Server, name: str) -> None:
    """Open transactions stay open, completed ones stay completed, and the producers continue as without the restart."""
    ids = {step: f"{name}-{step}" for step in ("empty", "open", "committed", "aborted")}
    with Wire(own_server.bootstrap) as wire:
        topic_id = wire.create_topic(name)
        sessions = {step: wire.session(each) for step, each in ids.items()}
        for step in ("open", "committed", "aborted"):
            written(wire, ids[step], sessions[step], name, [step.encode()])
        for step, commit in (("committed", True), ("aborted", False)):
            sessions[step] = ended(wire, ids[step], sessions[step], commit)
            # Including markers: Apache Kafka 4.3.1, just started, may complete a prepared transaction without them.
            until_state(wire, ids[step], "CompleteCommit" if commit else "CompleteAbort")
    own_server.kill()
    own_server.wait_ready()
    with Wire(own_server.bootstrap) as wire:
        for each in ids.values():
            wire.find_coordinator(each)
        until_state(wire, ids["committed"], "CompleteCommit")
        until_state(wire, ids["aborted"], "CompleteAbort")
        assert state(wire, ids["empty"]) == "Empty"
        found = describe(wire, ids["open"])
        assert (found.transaction_state, found.producer_id) == ("Ongoing", sessions["open"].producer_id)
        assert [(each.topic, list(each.partitions)) for each in found.topics] == [(name, [0])]
        written(wire, ids["open"], sessions["open"], name, [b"more"], 1)
        ended(wire, ids["open"], sessions["open"])
        for step in ("empty", "committed", "aborted"):
            written(wire, ids[step], sessions[step], name, [b"after " + step.encode()])
            ended(wire, ids[step], sessions[step])
        for each in ids.values():
            until_state(wire, each, "CompleteCommit")
        everything = [b"open", b"committed", b"more", b"after empty", b"after committed", b"after aborted"]
        assert wire.values(topic_id, committed=True) == everything
        again = Session(sessions["committed"].producer_id, sessions["committed"].epoch + 1)
        assert again in {Session(pid, epoch) for pid, epoch, _ in markers(wire, topic_id)}


def test_coordinator_is_found_for_every_id(wire: Wire, name: str) -> None:
    """Version 4 and later look up many ids in one request, older versions one id."""
    ids = [f"{name}-{number}" for number in range(5)]
    for each in ids:
        wire.find_coordinator(each)
    answer = wire.call(FindCoordinatorRequest(key_type=1, coordinator_keys=ids))
    assert [(each.key, each.error_code) for each in answer.coordinators] == [(each, 0) for each in ids]
    for version in (1, 2, 3):
        answer = wire.call(FindCoordinatorRequest(key_type=1, key=name), version)
        assert (answer.error_code, answer.node_id) == (0, 1)
