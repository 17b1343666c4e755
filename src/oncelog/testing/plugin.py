"""The pytest plugin: fixtures with a broker for each test run, and a new topic for each test.

pytest imports this module in every run in an environment with oncelog, so it imports everything else when a test needs
it. pytest is not a dependency of oncelog: no other module imports it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oncelog import Admin
    from oncelog.faults.proxy import FaultProxy
    from oncelog.testing.broker import Broker
    from oncelog.testing.registry import SchemaRegistryDouble


@pytest.fixture(scope="session")
def oncelog_settings() -> dict[str, object]:
    """Return the settings of the session's broker, by Kafka's names. Override it in `conftest.py`. Default: none."""
    return {}


@pytest.fixture(scope="session")
def oncelog_secure() -> bool:
    """Return whether the session's broker requires TLS and a login. Override it in `conftest.py`. Default: no."""
    return False


@pytest.fixture(scope="session")
def oncelog_session_broker(oncelog_settings: dict[str, object], oncelog_secure: bool) -> Iterator[Broker]:
    """Run the session's broker. Each worker of pytest-xdist has its own. Tests use `oncelog_broker` instead."""
    from oncelog.testing.broker import Broker

    with Broker(oncelog_settings, secure=oncelog_secure) as broker:
        yield broker


@pytest.fixture(scope="session")
def bootstrap_servers(oncelog_session_broker: Broker) -> str:
    """Return the address of the session's broker, such as "127.0.0.1:43127".

    All tests of a session share it. To run the same tests on another Kafka, override this fixture in `conftest.py`.
    """
    return oncelog_session_broker.bootstrap_servers


@pytest.fixture(scope="session")
def oncelog_client_options(request: pytest.FixtureRequest, oncelog_secure: bool) -> dict[str, str]:
    """Return the options of clients, by Kafka's names: none, unless `oncelog_secure`. Override it for another Kafka."""
    if not oncelog_secure:
        return {}  # without a start of the broker: the tests may run on another Kafka
    broker: Broker = request.getfixturevalue("oncelog_session_broker")
    return broker.client_options


@pytest.fixture
def oncelog_broker(oncelog_session_broker: Broker) -> Iterator[Broker]:
    """Return the broker at `bootstrap_servers`, to kill, restart or pause it.

    If the test leaves it dead, paused or stopped, the fixture makes it run again at the same address. After `stop`, it
    has no data.
    """
    yield oncelog_session_broker
    oncelog_session_broker.recover()


@pytest.fixture
def oncelog_faults(bootstrap_servers: str) -> Iterator[FaultProxy]:
    """Return a proxy in front of the brokers at `bootstrap_servers`, which makes no faults yet.

    Connect the tested program to its `bootstrap_servers`, and call `add("lose-answer Produce:1")`.
    """
    from oncelog.faults.proxy import FaultProxy

    with FaultProxy(bootstrap_servers) as faults:
        yield faults


@pytest.fixture
def oncelog_registry() -> Iterator[SchemaRegistryDouble]:
    """Return a test double of a schema registry, which is empty. Its `url` is for any client of Confluent's REST API.

    It knows subjects, versions, ids, and the compatibility levels BACKWARD and NONE. It is not a real registry.
    """
    from oncelog.testing.registry import SchemaRegistryDouble

    with SchemaRegistryDouble() as registry:
        yield registry


@pytest.fixture(scope="session")
def _oncelog_admins(oncelog_client_options: dict[str, str]) -> Iterator[Callable[[str], Admin]]:
    """Return a function address -> Admin, because a test may override `bootstrap_servers` with a smaller scope."""
    from oncelog import Admin

    admins: dict[str, Admin] = {}

    def admin(address: str) -> Admin:
        if address not in admins:
            admins[address] = Admin(address, oncelog_client_options)
        return admins[address]

    yield admin
    for each in admins.values():
        each.close()


@pytest.fixture
def new_topic(
    request: pytest.FixtureRequest, bootstrap_servers: str, _oncelog_admins: Callable[[str], Admin]
) -> Callable[..., str]:
    """Return a function that creates a topic and returns its name: `new_topic(partitions=3, configs={...})`.

    The name begins with that of the test. It is unique, so tests on a shared broker do not conflict.
    """
    stem = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:80]

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        name = f"{stem}-{uuid.uuid4().hex[:8]}"
        _oncelog_admins(bootstrap_servers).create_topics(name, partitions, configs=configs)
        return name

    return create


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    """Return the name of a new topic with one partition."""
    return new_topic()
