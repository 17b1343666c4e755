"""A broker with the methods of testcontainers-python's `KafkaContainer`, without Docker."""

from __future__ import annotations

import re
from types import TracebackType

from oncelog.testing.broker import START_TIMEOUT_S, Broker

PORT = 9093
"""The port that Testcontainers' `KafkaContainer` exposes."""


class OncelogContainer:
    """Run a broker for tests in the manner of Testcontainers' `KafkaContainer`. It needs neither Docker nor a JVM.

        with OncelogContainer() as kafka:
            run_my_service(kafka.get_bootstrap_server())

    To move tests from Testcontainers, change the import. `image` and `port` are accepted and ignored: the broker is the
    installed version of oncelog, and listens on a free port.
    """

    def __init__(self, image: str | None = None, port: int = PORT) -> None:
        self.image = image
        self.port = port
        self._settings: dict[str, str] = {}
        self._broker: Broker | None = None

    def __enter__(self) -> OncelogContainer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def with_env(self, key: str, value: str) -> OncelogContainer:
        """Set a broker setting, named by the image's environment variable. Return the container.

        KAFKA_AUTO_CREATE_TOPICS_ENABLE sets auto.create.topics.enable. Raises ValueError for a name without KAFKA_, and
        RuntimeError after `start`.
        """
        if self._broker is not None:
            raise RuntimeError(f"with_env({key!r}): the broker is running; call with_env before start()")
        if not key.startswith("KAFKA_"):
            raise ValueError(f"with_env({key!r}): only variables KAFKA_... are broker settings")
        # The rules of Confluent's images: _ is a dot, __ an underscore, ___ a hyphen.
        replaced = {1: ".", 2: "_", 3: "-"}
        name = re.sub(r"_{1,3}", lambda found: replaced[len(found[0])], key.removeprefix("KAFKA_").lower())
        self._settings[name] = str(value)
        return self

    def with_kraft(self) -> OncelogContainer:
        """Return the container. The broker never needs ZooKeeper."""
        return self

    def start(self, timeout: float = START_TIMEOUT_S) -> OncelogContainer:
        """Start the broker, and return when it accepts requests. Raises BrokerStartError."""
        if self._broker is None:
            self._broker = Broker(self._settings, timeout=timeout).start()
        return self

    def stop(self) -> None:
        """Stop the broker and delete its data."""
        if self._broker is not None:
            self._broker.stop()
            self._broker = None

    @property
    def broker(self) -> Broker:
        """The broker, to kill, restart or pause it. Raises RuntimeError before `start`."""
        if self._broker is None:
            raise RuntimeError("the container is not started; call start(), or use `with OncelogContainer() as kafka:`")
        return self._broker

    def get_bootstrap_server(self) -> str:
        """Return the broker's address, such as "127.0.0.1:43127"."""
        return self.broker.bootstrap_servers

    def get_container_host_ip(self) -> str:
        """Return the host of the broker's address."""
        return self.get_bootstrap_server().rpartition(":")[0]

    def get_exposed_port(self, port: int = PORT) -> int:
        """Return the port of the broker's address. `port` is ignored, because the broker has one listener."""
        return int(self.get_bootstrap_server().rpartition(":")[2])

    def get_logs(self) -> tuple[bytes, bytes]:
        """Return the output of the broker as (stdout, stderr). Its log is on stderr."""
        return b"", self.broker.log().encode()
