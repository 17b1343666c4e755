"""A secured broker whose secrets are unique texts, and programs that use them in right and wrong ways.

`found` searches everything that the broker and the programs have written for these texts.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from support.certificates import Pair, authority, signed_by
from support.processes import ManagedProcess, children
from support.secured_oncelog import MECHANISMS

USER, BROKER_USER = "alice", "broker"
SECRETS = {
    name: f"Mark{number}-{name}-x7Qz"
    for number, name in enumerate(
        (
            "plain",
            "other",
            "scram",
            "wrong",
            "inter-broker",
            "key-password",
            "store-password",
            "wrong-key-password",
            "misspelled",
            "altered",
            "too-late",
            "client-jaas",
        )
    )
}
"""The passwords. Nothing but the files in `MarkedBroker.allowed` may contain them."""
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


def private_text(pair: Pair) -> str:
    """Return a line from the middle of a private key in PEM."""
    return pair.key_pem().decode().splitlines()[2]


class MarkedBroker:
    """`oncelog up --config` with SASL_SSL, PLAIN and SCRAM, at the level DEBUG, with three listeners."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.data = folder / "data"
        self._authority = authority()
        self._pair = signed_by(self._authority, "broker", "127.0.0.1", "localhost")
        self.client_pair = signed_by(self._authority, "client")
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self._authority.certificate_pem)
        self.keys = folder / "broker.pem"
        self.keys.write_bytes(self._pair.key_pem(SECRETS["key-password"]) + self._pair.certificate_pem)
        self.store = folder / "broker.p12"
        self.store.write_bytes(self._pair.pkcs12(self._authority, SECRETS["store-password"]))
        self.settings_file = folder / "server.properties"
        self.allowed = {self.settings_file, self.keys, self.store}
        """Files that contain secrets because they must."""
        self.env = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "ONCELOG_LOG_LEVEL": "DEBUG",
            "ONCELOG_TRACE": "1",
            "PYTHONASYNCIODEBUG": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        self.write_settings()
        self.process = self.start("up")
        self.process.wait_for(lambda: self.lines(), "it prints its address")
        addresses = self.lines()[0].removeprefix("BROKERS=").split(",")
        self.bootstrap = addresses[0]

    def lines(self) -> list[str]:
        return [line for line in self.process.lines() if line.startswith("BROKERS=")]

    def settings(self) -> dict[str, str]:
        users = f'user_{USER}="{SECRETS["plain"]}" user_{BROKER_USER}="{SECRETS["inter-broker"]}"'
        own = f'username="{BROKER_USER}" password="{SECRETS["inter-broker"]}"'
        return {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "inter.broker.listener.name": "SASL_SSL",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{_MODULE} {own} {users};",
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{_SCRAM};",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keys),
            "ssl.key.password": SECRETS["key-password"],
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{USER};User:{BROKER_USER}",
            "ssl.keystore.passwrod": SECRETS["misspelled"],
            "log.retention.hours": "24",
        }

    def write_settings(self, changed: Mapping[str, str] | None = None, name: str = "server.properties") -> Path:
        """Write a file with the settings, and return its path."""
        path = self.folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in {**self.settings(), **(changed or {})}.items()))
        path.chmod(0o600)
        self.allowed.add(path)
        return path

    def start(self, name: str, config: Path | None = None) -> ManagedProcess:
        program = Path(sys.executable).with_name("oncelog")
        data = self.data if config is None else self.folder / f"data-{name}"
        command: list[str | Path] = [program, "up", "--port", "0", "--data", data]
        command += ["--config", config or self.settings_file]
        if config is not None:
            command.append("--no-restart")
        return ManagedProcess(command, self.folder, name, self.env)

    def options(self, mechanism: str, password: str, user: str = USER) -> dict[str, str]:
        """Return the options of a client by Kafka's names."""
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.ca),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def program(self, name: str, code: str, *arguments: str) -> None:
        """Run Python with all of its logs at DEBUG. Its files NAME.out and NAME.err have the output."""
        begin = "import logging, sys; logging.basicConfig(level=logging.DEBUG)\n"
        self.run(name, [sys.executable, "-c", begin + code], *arguments, stdin=None)

    def run(self, name: str, command: Iterable[str | Path], *arguments: str, stdin: str | None = None) -> int:
        """Run a command to its end. The files NAME.out and NAME.err have its output. Return its status."""
        with (self.folder / f"{name}.out").open("ab") as out, (self.folder / f"{name}.err").open("ab") as err:
            done = subprocess.run(
                [*map(str, command), *arguments],
                stdout=out,
                stderr=err,
                input=None if stdin is None else stdin.encode(),
                env=self.env,
                timeout=120,
                check=False,
            )
        return done.returncode

    def marks(self) -> list[bytes]:
        """Return all secrets, also as they are encoded on the wire and in keys."""
        texts = [*SECRETS.values(), private_text(self._pair), private_text(self.client_pair)]
        encoded = [base64.b64encode(text.encode()).decode().rstrip("=")[:-1] for text in SECRETS.values()]
        return [text.encode() for text in (*texts, *encoded)]

    def processes(self) -> Iterator[tuple[str, bytes]]:
        """Yield what other users of the machine can see of the broker's processes, and what its own user can."""
        for pid in (self.process.pid, *children(self.process.pid)):
            for part in ("cmdline", "comm", "environ"):
                yield f"/proc/{pid}/{part}", Path(f"/proc/{pid}/{part}").read_bytes()

    def found(self) -> list[str]:
        """Return where secrets are, with the text around each."""
        contents = [
            (str(path), path.read_bytes())
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path not in self.allowed
        ]
        return [
            f"{place}: ...{content[max(0, content.find(mark) - 200) : content.find(mark) + 60]!r}"
            for place, content in (*contents, *self.processes())
            for mark in self.marks()
            if mark in content
        ]

    def stop(self) -> None:
        self.process.stop()
