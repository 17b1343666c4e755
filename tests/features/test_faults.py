"""`FaultProxy` and `oncelog faults`: each fault, with our client, librdkafka and raw requests."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from oncelog import Admin, Consumer, Producer, errors
from oncelog.faults.proxy import FaultProxy
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.headers import RequestHeader, encode_request_header
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from support.command_line import ONCELOG, Tool
from support.processes import ManagedProcess, wait_until
from support.reading import read
from support.servers import OncelogCluster, Server
from support.wire import Wire, batch, code

QUICK = {"linger_ms": 0, "retry_backoff_ms": 2}
VALUES = [b"0", b"1", b"2"]


def ours(bootstrap: str, topic: str, *, idempotence: bool) -> None:
    with Producer(bootstrap, enable_idempotence=idempotence, **QUICK) as producer:
        for value in VALUES:
            producer.send(topic, value, partition=0).result(30)


def librdkafka(bootstrap: str, topic: str, *, idempotence: bool) -> None:
    options = {"bootstrap.servers": bootstrap, "enable.idempotence": idempotence, "acks": "all", "linger.ms": 0}
    producer = confluent_kafka.Producer(options | {"retry.backoff.ms": 2})
    for value in VALUES:
        producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0


Send = Callable[..., None]


@pytest.mark.parametrize("send", [ours, librdkafka])
@pytest.mark.parametrize(
    ("rule", "without"),
    [
        ("lose-answer Produce:2", [b"0", b"1", b"1", b"2"]),
        ("cut Produce:2", [b"0", b"1", b"1", b"2"]),
        ("error-after Produce:2 code=NOT_ENOUGH_REPLICAS_AFTER_APPEND", [b"0", b"1", b"1", b"2"]),
        ("duplicate Produce:2", [b"0", b"1", b"1", b"2"]),
        ("lose-request Produce:2", [b"0", b"1", b"2"]),
        ("error Produce:2-3 code=NOT_ENOUGH_REPLICAS", [b"0", b"1", b"2"]),
        ("delay Produce:2 for=50ms", [b"0", b"1", b"2"]),
    ],
)
def test_fault_doubles_a_record_unless_the_producer_is_idempotent(
    wire: Wire, server: Server, name: str, send: Send, rule: str, without: list[bytes]
) -> None:
    for idempotence, expected in ((False, without), (True, VALUES)):
        topic = f"{name}-{idempotence}"
        wire.create_topic(topic)
        with FaultProxy(server.bootstrap, rule) as faults:
            send(faults.bootstrap_servers, topic, idempotence=idempotence)
            assert [fault.action for _, fault in faults.made] == [rule.split()[0]] * (2 if "2-3" in rule else 1)
        assert read(server.bootstrap, topic) == expected


def test_held_request_arrives_although_the_client_has_given_up(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    with FaultProxy(server.bootstrap, "hold Produce:1") as faults:
        with Producer(faults.bootstrap_servers, delivery_timeout_ms=500, request_timeout_ms=400, retries=0) as producer:
            with pytest.raises(errors.KafkaError):
                producer.send(name, b"late", partition=0).result(30)
            assert wire.offset(name) == 0
        assert faults.release() == 1
        assert wire.offset(name) == 1
        assert faults.release() == 0
        faults.clear()
        faults.add("hold Produce:1 for=10ms")
        with Producer(faults.bootstrap_servers, enable_idempotence=False, **QUICK) as producer:
            producer.send(name, b"again", partition=0).result(30)
        wait_until(lambda: read(server.bootstrap, name) == [b"late", b"again", b"again"], "both copies have arrived")


def test_error_without_a_cut_changes_the_order_unless_the_producer_is_idempotent(
    wire: Wire, server: Server, name: str
) -> None:
    """The first batch is sent again behind the others, which are on their way already."""
    found = {}
    for idempotence in (False, True):
        topic = f"{name}-{idempotence}"
        wire.create_topic(topic)
        with FaultProxy(server.bootstrap, "error Produce:2 code=NOT_LEADER_OR_FOLLOWER for=2s") as faults:
            options = {"linger_ms": 0, "batch_size": 1}
            with Producer(faults.bootstrap_servers, enable_idempotence=idempotence, **options) as producer:
                producer.send(topic, b"first", partition=0).result(30)
                for value in VALUES:
                    producer.send(topic, value, partition=0)
        found[idempotence] = read(server.bootstrap, topic)
    assert found == {False: [b"first", b"1", b"2", b"0"], True: [b"first", b"0", b"1", b"2"]}


def test_silence_lasts_for_the_connection(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    with FaultProxy(server.bootstrap, "silence Produce:1") as faults:
        options = {"request_timeout_ms": 500, "socket_connection_setup_timeout_ms": 500}
        with Producer(faults.bootstrap_servers, **options, **QUICK) as producer:
            assert producer.send(name, b"x", partition=0).result(30).offset == 0
    assert read(server.bootstrap, name) == [b"x"]


def test_filters_choose_the_requests_that_count(wire: Wire, server: Server, name: str) -> None:
    """Our producer and librdkafka name topics by name, or by id from Produce v13 on."""
    others = f"{name}-others"
    for topic in (name, others):
        wire.create_topic(topic, 2)
    rule = f"lose-answer Produce:2 topic={name} partition=1 client=chosen"
    with FaultProxy(server.bootstrap, rule) as faults:
        for client in ("chosen", "other"):
            with Producer(faults.bootstrap_servers, client_id=client, enable_idempotence=False, **QUICK) as producer:
                for topic, partition in ((others, 1), (name, 0), (name, 1), (name, 1), (name, 1)):
                    producer.send(topic, client.encode(), partition=partition).result(30)
        assert [str(request).split(" to ")[0] for request, _ in faults.made] == ["Produce 4 of client 'chosen'"]
    assert read(server.bootstrap, name, 2).count(b"chosen") == 5
    assert read(server.bootstrap, name, 2).count(b"other") == 4


@pytest.mark.parametrize(
    ("request_", "rule"),
    [
        (HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), "error Heartbeat code=REBALANCE_IN_PROGRESS"),
        (FetchRequest(max_wait_ms=0, topics=[]), "error Fetch code=FETCH_SESSION_ID_NOT_FOUND"),
    ],
)
def test_error_has_the_form_of_its_api(server: Server, request_: HeartbeatRequest, rule: str) -> None:
    with FaultProxy(server.bootstrap, rule) as faults, Wire(faults.bootstrap_servers) as through:
        for version in range(type(request_).MIN_VERSION, type(request_).MAX_VERSION + 1):
            low, high = through.versions[request_.API_KEY]
            if low <= version <= high and (request_.API_KEY != ApiKey.FETCH or version >= 7):
                assert through.call(request_, version).error_code == code(rule.partition("code=")[2])


def test_function_decides_what_text_cannot_express(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    with FaultProxy(server.bootstrap) as faults:
        faults.rule = lambda request: "lose-answer" if any(batch.count == 3 for batch in request.batches) else None
        with Producer(faults.bootstrap_servers, linger_ms=500, enable_idempotence=False, retries=1) as producer:
            futures = [producer.send(name, value, partition=0) for value in VALUES]
            producer.flush()
            assert all(future.exception(30) is not None for future in futures)
    assert read(server.bootstrap, name) == VALUES * 2


def test_function_that_fails_is_named(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    for rule, why in ((lambda _: {}["x"], "KeyError('x')"), (lambda _: "lose-anwser", "is not an action")):
        caplog.clear()
        with FaultProxy(server.bootstrap) as faults:
            faults.rule = rule
            with pytest.raises(ConnectionError, match="closed"):
                Wire(faults.bootstrap_servers)
        assert "closed a connection: the function `rule` has failed for ApiVersions 1 of client 'wire'" in caplog.text
        assert why in caplog.text


def test_all_brokers_are_reached_through_the_proxy_also_after_a_change_of_leaders(
    replicated_cluster: OncelogCluster, name: str
) -> None:
    with Admin(replicated_cluster.bootstrap) as admin:
        admin.create_topics(name, 6, replication_factor=3)
    first = replicated_cluster.bootstrap.split(",")[0]
    with FaultProxy(first) as faults, Producer(faults.bootstrap_servers, **QUICK) as producer:
        for partition in range(6):
            producer.send(name, b"before", partition=partition).result(60)
        assert {request.broker for request in faults.seen if request.api is ApiKey.PRODUCE} == {1, 2, 3}
        replicated_cluster.kill(2)
        for partition in range(6):
            producer.send(name, b"after", partition=partition).result(60)
        replicated_cluster.wait_ready()
        with Consumer(faults.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([(name, partition) for partition in range(6)])
            found: list[bytes | None] = []
            wait_until(lambda: found.extend(r.value for r in consumer.poll(1)) or len(found) >= 12, "all records")
    assert sorted(filter(None, found)) == [b"after"] * 6 + [b"before"] * 6


def connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    made = socket.create_connection((host, int(port)), timeout=30)
    made.settimeout(30)
    return made


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",  # the begin of TLS
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 4) + b"\xff" * 4,
        struct.pack(">i", 30) + b"\x00\x00\x00\x0d" + b"\xff" * 26,  # Produce, with an impossible client id
        b"\x00\x00",
        b"",
    ],
)
def test_garbage_ends_its_own_connection_only(server: Server, garbage: bytes) -> None:
    with FaultProxy(server.bootstrap, "error * code=UNKNOWN_SERVER_ERROR topic=x") as faults:
        with connect(faults.bootstrap_servers) as bad:
            bad.sendall(garbage)
            bad.shutdown(socket.SHUT_WR)
            assert bad.recv(100) == b""
        with Wire(faults.bootstrap_servers) as good:
            assert good.versions


def test_many_connections_and_a_client_that_does_not_read(server: Server, name: str, wire: Wire) -> None:
    wire.create_topic(name)
    wire.produce(name, batch([b"x" * 900_000]))
    with FaultProxy(server.bootstrap) as faults:
        idle = [connect(faults.bootstrap_servers) for _ in range(300)]
        with Wire(faults.bootstrap_servers) as slow:
            parts = [FetchPartition(partition=0, partition_max_bytes=1 << 20)]
            fetch = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic=name, partitions=parts)])
            for _ in range(200):
                slow.send(fetch, 12)  # more responses than sockets and the proxy hold
            assert read(faults.bootstrap_servers, name) == [b"x" * 900_000]
        for each in idle:
            each.close()
        with Wire(faults.bootstrap_servers) as good:
            assert good.versions


def test_no_broker_behind_the_proxy_is_no_broker(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with FaultProxy(address) as faults, connect(faults.bootstrap_servers) as client:
        assert client.recv(1) == b""


def test_command_names_the_wrong_line_of_a_file(server: Server, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("lose-answer Produce:2\n\nlose Produce\n")
    message = Tool(server.bootstrap).fails(2, "faults", "--rules", str(rules))
    assert "rules, line 3: 'lose' is not an action" in " ".join(message.split())


@pytest.mark.parametrize("rule", ["lose-answer Produce", "error-after Produce code=CORRUPT_MESSAGE"])
def test_request_without_an_answer_loses_its_connection(server: Server, name: str, wire: Wire, rule: str) -> None:
    wire.create_topic(name)
    with FaultProxy(server.bootstrap, rule) as faults, connect(faults.bootstrap_servers) as client:
        part = PartitionProduceData(index=0, records=batch([b"x"]))
        produce = ProduceRequest(acks=0, topic_data=[TopicProduceData(name=name, partition_data=[part])])
        frame = encode_request_header(RequestHeader(ApiKey.PRODUCE, 9, 1, "app")) + produce.encode(9)
        client.sendall(struct.pack(">i", len(frame)) + frame)
        assert client.recv(1) == b""
    wait_until(lambda: read(server.bootstrap, name) == [b"x"], "the record arrives")


def test_idle_client_sees_that_its_broker_has_died(replicated_cluster: OncelogCluster) -> None:
    """Except after `silence`: that client must notice nothing."""
    second = replicated_cluster.bootstrap.split(",")[1]
    heartbeat = struct.pack(">hhihhih", ApiKey.HEARTBEAT, 0, 1, -1, 0, 1, 0)
    faults = FaultProxy(second, "silence Heartbeat")
    with faults, connect(faults.bootstrap_servers) as idle, connect(faults.bootstrap_servers) as silenced:
        silenced.sendall(struct.pack(">i", len(heartbeat)) + heartbeat)
        wait_until(lambda: faults.made, "the request is swallowed")
        replicated_cluster.kill(2)
        assert idle.recv(1) == b""
        silenced.setblocking(False)
        with pytest.raises(BlockingIOError):
            silenced.recv(1)
    replicated_cluster.wait_ready()


def test_command_names_what_it_cannot_use(server: Server, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_bytes(b"lose-answer Produce:1\n\xff\n")
    tool = Tool(server.bootstrap)
    assert f"'{rules}' is not a text file in UTF-8" in tool.fails(2, "faults", "--rules", str(rules))
    for option in ("--listen", "-b"):
        assert "'127.0.0.1:65536' is not an address" in tool.fails(2, "faults", option, "127.0.0.1:65536")


def test_command_prints_its_address_and_each_fault(server: Server, name: str, tmp_path: Path, wire: Wire) -> None:
    wire.create_topic(name)
    rules = tmp_path / "rules"
    rules.write_text("# the second one\n\nlose-answer Produce:2\n")
    command = [ONCELOG, "faults", "-b", server.bootstrap, "--rule", "error Produce:1 code=NOT_LEADER_OR_FOLLOWER"]
    process = ManagedProcess([*command, "--rules", rules], tmp_path, "faults")
    try:
        process.wait_for(lambda: list(process.lines()), "it prints its address")
        (line,) = process.lines()
        done = Tool(line.removeprefix("BROKERS=")).run("topic", "produce", name, stdin="a\n")
        (line,) = done.stderr.splitlines()
        assert ": queued again, " in line
        assert "after attempt 1: NOT_LEADER_OR_FOLLOWER" in line
    finally:
        assert process.stop() == 0
    made = [text.split(" ", 1)[1].split(" to ")[0] for text in process.stderr_path.read_text().splitlines()]
    assert made == ["error: Produce 1 of client 'oncelog-cli'", "lose-answer: Produce 2 of client 'oncelog-cli'"]
    assert read(server.bootstrap, name) == [b"a"]


def test_command_traces_requests_and_exempts_them_from_later_rules(
    server: Server, name: str, tmp_path: Path, wire: Wire
) -> None:
    wire.create_topic(name)
    rules = ["--rule", "pass Produce", "--rule", "lose-answer *"]
    process = ManagedProcess([ONCELOG, "faults", "-b", server.bootstrap, *rules[:2]], tmp_path, "faults")
    try:
        process.wait_for(lambda: list(process.lines()), "it prints its address")
        (line,) = process.lines()
        Tool(line.removeprefix("BROKERS="))("topic", "produce", name, stdin="a\n")
    finally:
        assert process.stop() == 0
    (line,) = process.stderr_path.read_text().splitlines()
    assert " pass: Produce 1 of client 'oncelog-cli' to broker " in line
    with FaultProxy(server.bootstrap, rules[1], "error Produce code=CORRUPT_MESSAGE") as faults:
        ours(faults.bootstrap_servers, name, idempotence=True)
        assert not faults.made


@pytest.mark.parametrize("rules", [[], ["--rule", "pass Produce"]])
def test_command_says_that_it_makes_no_fault_and_that_no_broker_runs(tmp_path: Path, rules: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    process = ManagedProcess([ONCELOG, "faults", "-b", address, *rules], tmp_path, "faults")
    remark = f"oncelog: no broker can be reached at {address} (Connection refused); clients reach none either"
    without = "oncelog: there is no rule, so no request meets a fault; --rule 'pass *' prints each request"
    try:
        process.wait_for(lambda: remark in process.stderr_path.read_text(), "it prints the remark")
        assert (without in process.stderr_path.read_text()) == (not rules)
    finally:
        assert process.stop() == 0


def test_command_releases_what_it_holds_on_a_signal(server: Server, name: str, tmp_path: Path, wire: Wire) -> None:
    wire.create_topic(name)
    process = ManagedProcess(
        [ONCELOG, "faults", "-b", server.bootstrap, "--rule", "hold Produce:1"], tmp_path, "faults"
    )
    try:
        process.wait_for(lambda: list(process.lines()), "it prints its address")
        (line,) = process.lines()
        done = Tool(line.removeprefix("BROKERS=")).run("topic", "produce", name, "--no-idempotence", stdin="a\n")
        assert done.returncode == 0
        assert read(server.bootstrap, name) == [b"a"]
        os.kill(process.pid, signal.SIGUSR1)
        process.wait_for(lambda: "released" in process.stderr_path.read_text(), "the request has arrived")
    finally:
        assert process.stop() == 0
    assert process.stderr_path.read_text().splitlines()[-1] == "released held requests; answered: 1"
    assert read(server.bootstrap, name) == [b"a", b"a"]


def test_command_ends_at_once_while_a_hanging_broker_gets_what_was_held(tmp_path: Path) -> None:
    heartbeat = struct.pack(">hhihhih", ApiKey.HEARTBEAT, 0, 1, -1, 0, 1, 0)
    with socket.create_server(("127.0.0.1", 0)) as broker:
        address = f"127.0.0.1:{broker.getsockname()[1]}"
        process = ManagedProcess([ONCELOG, "faults", "-b", address, "--rule", "hold Heartbeat"], tmp_path, "faults")
        try:
            process.wait_for(lambda: list(process.lines()), "it prints its address")
            (line,) = process.lines()
            with connect(line.removeprefix("BROKERS=")) as client:
                client.sendall(struct.pack(">i", len(heartbeat)) + heartbeat)
                assert client.recv(1) == b""
            os.kill(process.pid, signal.SIGUSR1)
            received = b""
            while not received:  # the command has also tried whether the broker can be reached
                with broker.accept()[0] as upstream:
                    upstream.settimeout(30)
                    while len(received) < 4 + len(heartbeat) and (part := upstream.recv(1 << 10)):
                        received += part
                    if received:
                        os.kill(process.pid, signal.SIGTERM)
                        assert process.popen.wait(10) == 0
            assert received.endswith(heartbeat)
        finally:
            process.stop()
    assert "Traceback" not in process.output()


@contextmanager
def broken_pipe() -> Iterator[int]:
    """Yield the end of a pipe whose other end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def test_command_continues_if_nobody_reads_its_remarks(server: Server, name: str, wire: Wire) -> None:
    wire.create_topic(name)
    command = [ONCELOG, "faults", "-b", server.bootstrap, "--rule", "error Produce:1 code=NOT_LEADER_OR_FOLLOWER"]
    with broken_pipe() as stderr, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as faults:
        try:
            assert faults.stdout is not None
            address = faults.stdout.readline().strip().removeprefix("BROKERS=")
            faults.send_signal(signal.SIGUSR1)
            produce = [ONCELOG, "topic", "produce", name, "-b", address]
            assert subprocess.run(produce, input=b"a\n", stderr=stderr, timeout=60, check=False).returncode == 0
        finally:
            faults.terminate()
        assert faults.wait(30) == 0
    assert read(server.bootstrap, name) == [b"a"]
