"""`oncelog.testing.Broker`: start, faults, and what is left when it stops or its process is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oncelog import Consumer, Producer
from oncelog.errors import KafkaError, TimedOutError
from oncelog.testing import Broker, BrokerStartError, OncelogContainer
from support.processes import accepts, children, gone, wait_until


def data_of(broker: Broker) -> Path:
    found = re.search(r"the data is in (.*)", broker.log())
    assert found
    return Path(found[1])


def values(broker: Broker, topic: str) -> list[bytes | None]:
    with Consumer(broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        end = consumer.end_offsets([(topic, 0)])[topic, 0]
        found: list[bytes | None] = []
        while len(found) < end:
            found += [record.value for record in consumer.poll(10)]
        return found


def test_secure_broker_is_used_with_its_client_options() -> None:
    with Broker(secure=True, topics=["t"]) as broker:
        options = broker.client_options
        with Producer(broker.bootstrap_servers, options) as producer:
            broker.kill()
            broker.restart()
            producer.send("t", b"x").result()
        with pytest.raises(KafkaError), Producer(broker.bootstrap_servers, max_block_ms=2000) as producer:
            producer.send("t", b"y").result()
        assert options["sasl.jaas.config"] not in broker.log()
    with Broker() as broker:
        assert broker.client_options == {}


def test_broker_stops_and_leaves_no_process_port_or_folder() -> None:
    with Broker() as broker:
        address, pid, folder = broker.bootstrap_servers, broker.pid, data_of(broker)
        assert accepts(address)
        assert folder.is_dir()
        assert repr(broker) == f"<Broker at {address}>"
    assert gone(pid)
    assert not accepts(address)
    assert not folder.exists()
    broker.stop()
    with pytest.raises(RuntimeError, match="not running"):
        _ = broker.bootstrap_servers


def test_acknowledged_records_survive_a_kill_and_clean_restarts() -> None:
    with Broker(topics=["orders"]) as broker, Producer(broker.bootstrap_servers) as producer:
        address = broker.bootstrap_servers
        producer.send("orders", "1").result()
        pid = broker.pid
        broker.kill()
        broker.kill()
        assert gone(pid)
        assert not accepts(address)
        with pytest.raises(RuntimeError, match="killed"):
            _ = broker.pid
        waiting = producer.send("orders", "2")
        broker.restart()
        waiting.result()
        broker.restart()
        assert broker.bootstrap_servers == address
        assert broker.pid != pid
        assert values(broker, "orders") == [b"1", b"2"]


def test_broker_answers_after_a_pause() -> None:
    with Broker(topics=["orders"]) as broker, Producer(broker.bootstrap_servers) as producer:
        producer.send("orders", "1").result()
        with broker.pause():
            waiting = producer.send("orders", "2")
            with pytest.raises(TimedOutError):
                waiting.result(timeout=0.3)
        assert waiting.result(timeout=60).offset == 1


@pytest.mark.parametrize("fault", ["pause", "kill"])
def test_recover_and_stop_work_after_a_fault(fault: str) -> None:
    with Broker() as broker:
        getattr(broker, fault)()
        broker.recover()
        assert accepts(broker.bootstrap_servers)
        folder, pid = data_of(broker), broker.pid
        getattr(broker, fault)()
    assert gone(pid)
    assert not folder.exists()


def test_failure_to_start_shows_the_output() -> None:
    with pytest.raises(BrokerStartError, match=r"(?s)status 2.*num\.partitions"):
        Broker({"num.partitions": "many"}).start()


def test_port_in_use_is_reported() -> None:
    with Broker() as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        with pytest.raises(BrokerStartError, match="the port is in use"):
            Broker(port=port).start()


def test_data_folder_is_kept_between_starts(tmp_path: Path) -> None:
    broker = Broker({"auto.create.topics.enable": False}, topics=["orders"], data=tmp_path / "data")
    with broker, Producer(broker.bootstrap_servers) as producer:
        producer.send("orders", "1").result()
    with broker:
        assert values(broker, "orders") == [b"1"]


PARENT = """
import sys, time
from oncelog.testing import Broker
broker = Broker().start()
log = broker.log()
folder = log.partition("the data is in ")[2].splitlines()[0]
print(broker.bootstrap_servers, broker._process.pid, broker.pid, folder, flush=True)
if sys.argv[1]:
    getattr(broker, sys.argv[1])()
    print("done", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("fault", ["", "kill", "pause"])
def test_kill_of_the_parent_leaves_no_process_port_or_folder(fault: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, fault], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        address, supervisor, broker, folder = parent.stdout.readline().split()
        assert Path(folder).is_dir()
        if fault:
            assert parent.stdout.readline() == "done\n"
        parent.kill()
    wait_until(lambda: gone(int(supervisor)), "oncelog up ends")
    wait_until(lambda: gone(int(broker)), "the broker ends")
    assert not Path(folder).exists()
    assert not accepts(address)


def test_interrupt_of_the_test_run_does_not_reach_the_broker() -> None:
    with Broker() as broker:
        assert os.getpgid(broker.pid) != os.getpgid(0)
        assert broker.pid in children(os.getpid())


def test_container_has_the_methods_of_testcontainers() -> None:
    container = OncelogContainer("confluentinc/cp-kafka:7.6.0").with_kraft()
    with pytest.raises(RuntimeError, match="not started"):
        container.get_bootstrap_server()
    with pytest.raises(ValueError, match="KAFKA_"):
        container.with_env("CLUSTER_ID", "x")
    with container.with_env("KAFKA_NUM_PARTITIONS", "3") as kafka:
        host, port = kafka.get_container_host_ip(), kafka.get_exposed_port(9093)
        assert kafka.get_bootstrap_server() == f"{host}:{port}"
        assert kafka.broker.settings == {"num.partitions": "3"}
        assert b"started" in kafka.get_logs()[1]
        with pytest.raises(RuntimeError, match="before start"):
            kafka.with_env("KAFKA_NUM_PARTITIONS", "4")
    container.stop()


def test_stop_of_a_broker_whose_supervisor_was_killed() -> None:
    with Broker() as broker:
        pid, folder = broker.pid, data_of(broker)
        assert broker._process is not None
        os.kill(broker._process.pid, signal.SIGKILL)
        wait_until(lambda: gone(pid), "the broker ends")
        with pytest.raises(RuntimeError, match="not running"):
            broker.kill()
    assert not folder.exists()


@pytest.mark.parametrize("settings", [{}, {"listeners": "PLAINTEXT://127.0.0.1:0"}])
def test_address_stays_the_same_after_stop_and_start(settings: dict[str, str]) -> None:
    with Broker(settings) as broker:
        address = broker.bootstrap_servers
        broker.stop()
        assert broker.start().bootstrap_servers == address


def test_module_needs_no_pytest() -> None:
    program = "import sys; sys.modules['pytest'] = None; import oncelog.testing"
    subprocess.run([sys.executable, "-c", program], check=True)
