"""The pytest plugin, in test runs of its own: alone, under pytest-xdist, interrupted and killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import gone, wait_until

pytest_plugins = ["pytester"]

TESTS = """
import os
import re
import signal
import pytest
from oncelog import Consumer, Producer

def test_records_reach_a_new_topic(bootstrap_servers, topic, new_topic):
    assert re.fullmatch(r"test-records-reach-a-new-topic-[0-9a-f]{8}", topic)
    wide = new_topic(3, configs={"cleanup.policy": "compact"})
    assert wide != topic
    with Producer(bootstrap_servers) as producer:
        assert producer.send(topic, "x").result().offset == 0
    with Consumer(bootstrap_servers) as consumer:
        assert len(consumer.partitions_for(wide)) == 3

@pytest.mark.parametrize("number", ["a/b", "c d"])
def test_each_test_has_its_own_topic(bootstrap_servers, topic, number):
    with Producer(bootstrap_servers) as producer:
        assert producer.send(topic, "x").result().offset == 0

@pytest.mark.parametrize("fault", ["kill", "pause", "stop"])
def test_fault(oncelog_broker, bootstrap_servers, fault, topic):
    assert oncelog_broker.bootstrap_servers == bootstrap_servers
    getattr(oncelog_broker, fault)()

def test_dead_up(oncelog_broker):
    log = oncelog_broker.log()
    with open(FOLDERS, "a") as file:
        file.write(log.rpartition("the data is in ")[2].splitlines()[0] + "\\n")
    os.kill(oncelog_broker._process.pid, signal.SIGKILL)
    oncelog_broker._process.wait()

def test_stop_and_start(oncelog_broker, bootstrap_servers, topic):
    oncelog_broker.stop()
    oncelog_broker.start()
    assert oncelog_broker.bootstrap_servers == bootstrap_servers

def test_the_broker_is_back_after_a_fault(oncelog_broker, topic):
    with Producer(oncelog_broker.bootstrap_servers) as producer:
        assert producer.send(topic, "x").result().offset == 0
    log = oncelog_broker.log()
    with open(FOLDERS, "a") as file:
        file.write(log.partition("the data is in ")[2].splitlines()[0] + "\\n")
"""


def write(pytester: pytest.Pytester, tests: str) -> Path:
    """Write the tests. Return the file to which they append the folders of their brokers."""
    folders = pytester.path / "folders"
    pytester.makepyfile(f"FOLDERS = {str(folders)!r}\n{tests}")
    return folders


def test_fixtures(pytester: pytest.Pytester) -> None:
    folders = write(pytester, TESTS)
    pytester.runpytest_subprocess("-q", "-W", "error", "--strict-markers").assert_outcomes(passed=9)
    assert not any(Path(folder).exists() for folder in folders.read_text().split())


def test_each_worker_of_xdist_has_its_own_broker(pytester: pytest.Pytester) -> None:
    folders = write(
        pytester,
        """
        import pytest, time
        @pytest.mark.parametrize("number", range(2))
        def test_broker(oncelog_broker, topic, number):
            with open(FOLDERS, "a") as file:
                file.write(oncelog_broker.log().partition("the data is in ")[2].splitlines()[0] + "\\n")
            oncelog_broker.kill()
            time.sleep(0.5)
        """.replace("\n        ", "\n"),
    )
    pytester.runpytest_subprocess("-q", "-n", "2", "--dist", "each").assert_outcomes(passed=4)
    used = set(folders.read_text().split())
    assert len(used) == 2
    assert not any(Path(folder).exists() for folder in used)


def test_conftest_overrides_settings_and_address(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pytest
        from oncelog.testing import Broker

        @pytest.fixture(scope="session")
        def oncelog_settings():
            return {"num.partitions": 5}

        @pytest.fixture(scope="module")
        def own():
            with Broker() as broker:
                yield broker
    """)
    pytester.makepyfile(
        test_settings="""
        def test_settings(oncelog_broker):
            assert oncelog_broker.settings == {"num.partitions": "5"}
        """,
        test_address="""
        import pytest
        from oncelog import Producer

        @pytest.fixture
        def bootstrap_servers(own):
            return own.bootstrap_servers

        def test_address(bootstrap_servers, own, topic):
            with Producer(own.bootstrap_servers) as producer:
                assert producer.send(topic, "x").result().offset == 0
        """,
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=2)


def test_secure_broker_is_used_with_its_client_options(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pytest

        @pytest.fixture(scope="session")
        def oncelog_secure():
            return True
    """)
    pytester.makepyfile("""
        from oncelog import Producer

        def test_secure(bootstrap_servers, oncelog_client_options, topic):
            with Producer(bootstrap_servers, oncelog_client_options) as producer:
                assert producer.send(topic, "x").result().offset == 0
    """)
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)


def test_failure_to_start_shows_the_output_of_up(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture(scope="session")
        def oncelog_settings():
            return {"num.partitions": "many"}

        def test_any(topic):
            pass
    """)
    result = pytester.runpytest_subprocess("-q")
    result.assert_outcomes(errors=1)
    result.stdout.re_match_lines([".*BrokerStartError: `oncelog up` ended with status 2", ".*num.partitions.*many.*"])


def test_plugin_imports_neither_client_nor_broker_before_a_fixture_is_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_modules():
            assert "oncelog.testing.plugin" in sys.modules
            loaded = {name for name in sys.modules if name.startswith(("oncelog.client", "oncelog.broker"))}
            assert not loaded
    """)
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)


ENDLESS = """
import time

def test_endless(oncelog_broker):
    folder = oncelog_broker.log().partition("the data is in ")[2].splitlines()[0]
    with open(FOLDERS, "a") as file:
        file.write(f"{oncelog_broker.pid} {oncelog_broker._process.pid} {folder}\\n")
    time.sleep(100)
"""


@pytest.mark.parametrize(
    ("number", "arguments"),
    [(signal.SIGKILL, ()), (signal.SIGINT, ()), (signal.SIGKILL, ("-n", "2", "--dist", "each"))],
)
def test_ended_run_leaves_no_process_or_folder(
    pytester: pytest.Pytester, number: signal.Signals, arguments: tuple[str, ...]
) -> None:
    folders = write(pytester, ENDLESS)
    brokers = 2 if arguments else 1
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    with subprocess.Popen(command, cwd=pytester.path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        wait_until(lambda: folders.exists() and folders.read_text().count("\n") == brokers, "the tests have brokers")
        run.send_signal(number)
    for line in folders.read_text().splitlines():
        found = re.fullmatch(r"(\d+) (\d+) (.+)", line)
        assert found
        wait_until(lambda pid=int(found[2]): gone(pid), "oncelog up ends")
        wait_until(lambda pid=int(found[1]): gone(pid), "the broker ends")
        assert not Path(found[3]).exists()
