"""A server.properties that Apache Kafka runs with, with TLS and logins, starts oncelog unchanged."""

from __future__ import annotations

from pathlib import Path

from oncelog import Producer
from support.apache_kafka import ApacheKafka
from support.certificates import authority, signed_by
from support.servers import OncelogCluster

_MODULE = "org.apache.kafka.common.security"
_PLAIN = (
    f'{_MODULE}.plain.PlainLoginModule required username="admin" '
    'password="hunter2-admin" user_admin="hunter2-admin" user_alice="hunter2-alice";'
)


class FiledKafka(ApacheKafka):
    """Apache Kafka with a certificate in PEM, and the other settings of Kafka's own file and of its documentation."""

    def listeners(self, port: int, controller: int) -> dict[str, str]:
        folder = self.folder
        made = authority()
        (folder / "ca.pem").write_bytes(made.certificate_pem)
        pair = signed_by(made, "broker", "127.0.0.1", "localhost")
        (folder / "broker.pem").write_bytes(pair.key_pem() + pair.certificate_pem)
        return {
            "listeners": f"SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
            "security.inter.broker.protocol": "SASL_SSL",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": _PLAIN,
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{_MODULE}.scram.ScramLoginModule required;",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.pem"),
            "ssl.client.auth": "none",
            "ssl.endpoint.identification.algorithm": "https",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:ANONYMOUS",
            "num.network.threads": "3",
            "num.io.threads": "8",
            "socket.send.buffer.bytes": "102400",
            "socket.receive.buffer.bytes": "102400",
            "socket.request.max.bytes": "104857600",
            "num.recovery.threads.per.data.dir": "1",
            "log.retention.hours": "168",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        }

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        super().__init__(folder)


def test_file_of_kafka_starts_oncelog_unchanged(tmp_path: Path) -> None:
    kafka = FiledKafka(tmp_path / "kafka")
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(kafka.folder / "ca.pem"),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": "hunter2-admin",
    }
    try:
        with Producer(kafka.address, options) as producer:
            assert producer.send("t", "x").result().offset == 0
    finally:
        kafka.stop()
    file = kafka.folder / "server.properties"
    arguments = ("--config", str(file))
    cluster = OncelogCluster(tmp_path / "ours", settings={"listeners": _own(file)}, arguments=arguments)
    try:
        assert cluster.bootstrap == kafka.address
        with Producer(cluster.bootstrap, options) as producer:
            assert producer.send("t", "x").result().offset == 0
        said = cluster.process.stderr_path.read_text()
        assert "unknown setting" not in said
        assert "hunter2" not in said
    finally:
        cluster.stop()


def _own(file: Path) -> str:
    """Return the listeners in the file: without them in its settings, the helper would choose another port."""
    return next(line.partition("=")[2] for line in file.read_text().splitlines() if line.startswith("listeners="))
