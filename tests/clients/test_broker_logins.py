"""Three brokers that log in to each other, by PLAIN and by SCRAM. `test_token_logins.py` has OAUTHBEARER."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oncelog import Admin, Producer
from oncelog.client.admin.users import UserScramCredentialUpsertion
from support.attacker import salt
from support.command_line import errors_of
from support.processes import wait_until
from support.secured_oncelog import PASSWORD, USER, certificates, secured_settings
from support.servers import OncelogCluster

BROKER_PASSWORD = "hunter2-broker"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_LOGIN = f'username="broker" password="{BROKER_PASSWORD}"'


class Brokers:
    """The cluster, with the options of a client of the user `alice`."""

    def __init__(self, folder: Path, mechanism: str, line: str, *arguments: str) -> None:
        made = certificates(folder)
        settings = {
            **secured_settings(made),
            "listener.security.protocol.map": "PLAINTEXT:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": mechanism,
            "sasl.mechanism.inter.broker.protocol": mechanism,
            f"{mechanism.lower()}.sasl.jaas.config": line,
        }
        self.tls = ssl.create_default_context(cafile=str(made.ca))
        self.cluster = OncelogCluster(folder, settings=settings, arguments=("--brokers", "3", *arguments))
        self.options = {
            "security_protocol": "SASL_SSL",
            "ssl_ca_location": str(made.ca),
            "sasl_mechanism": mechanism,
            "sasl_username": USER,
            "sasl_password": PASSWORD,
        }

    def write(self, topic: str) -> None:
        """Write to three partitions in one transaction, so that their leaders get markers from another broker."""
        with (
            Producer(self.cluster.bootstrap, transactional_id=topic, **self.options) as producer,
            producer.transaction() as transaction,
        ):
            for partition in range(3):
                transaction.send(topic, b"x", partition=partition)


@contextmanager
def brokers(folder: Path, mechanism: str, line: str, *arguments: str) -> Iterator[Brokers]:
    made = Brokers(folder, mechanism, line, *arguments)
    try:
        yield made
    finally:
        made.cluster.stop()


def test_three_brokers_log_in_at_each_other(tmp_path: Path, name: str) -> None:
    line = f'{_PLAIN} required {_LOGIN} user_broker="{BROKER_PASSWORD}" user_{USER}="{PASSWORD}";'
    with brokers(tmp_path, "PLAIN", line) as made, Admin(made.cluster.bootstrap, **made.options) as admin:
        admin.create_topics(name, 3, 3, {"min.insync.replicas": "3"})
        made.write(name)


def in_sync(admin: Admin, topic: str) -> set[int]:
    """Return the brokers that are in sync in all partitions."""
    return set.intersection(*(set(each.isr) for each in admin.describe_replication(topic)))


def test_three_brokers_log_in_with_scram_again_after_one_was_killed(tmp_path: Path, name: str) -> None:
    """The first start adds the user of the brokers. Later, it is in the metadata, and its password may change there."""
    users = ((USER, PASSWORD), ("broker", BROKER_PASSWORD))
    words = [
        word for user, password in users for word in ("--add-scram", f"SCRAM-SHA-512=[name={user},password={password}]")
    ]
    with (
        brokers(tmp_path, "SCRAM-SHA-512", f"{_SCRAM} required {_LOGIN};", *words) as made,
        Admin(made.cluster.bootstrap, **made.options) as admin,
    ):
        admin.create_topics(name, 3, 3, {"min.insync.replicas": "2"})
        made.write(name)
        addresses = made.cluster.bootstrap.split(",")
        assert len({salt(address, "nobody", "SCRAM-SHA-512", made.tls) for address in addresses}) == 1 < len(addresses)
        wait_until(lambda: in_sync(admin, name) == {1, 2, 3}, "all are in sync")
        made.cluster.kill(2)
        made.write(name)
        made.cluster.wait_ready()
        wait_until(lambda: in_sync(admin, name) == {1, 2, 3}, "the killed broker is in sync again")
        made.write(name)

        admin.alter_user_scram_credentials(UserScramCredentialUpsertion("broker", "another"))
        made.cluster.kill(3)
        wait_until(lambda: "rejected the login with SCRAM-SHA-512" in errors_of(made.cluster), "a login is rejected")
        wait_until(lambda: 3 not in in_sync(admin, name), "the broker with an old password is not in sync")
        admin.alter_user_scram_credentials(UserScramCredentialUpsertion("broker", BROKER_PASSWORD))
        wait_until(lambda: in_sync(admin, name) == {1, 2, 3}, "the broker is in sync after its password is valid")
        made.write(name)
        output = made.cluster.process.output() + errors_of(made.cluster)
        assert BROKER_PASSWORD not in output
        assert PASSWORD not in output
