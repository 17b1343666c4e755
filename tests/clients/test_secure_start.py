"""`oncelog up --secure` as a stranger uses it: a new directory, the printed lines, and clients of others."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from oncelog import Admin, Consumer, Producer, errors
from oncelog.client.admin.users import UserScramCredentialUpsertion
from oncelog.net.credentials import parse_jaas
from oncelog.net.properties import parse_properties
from support.command_line import Tool, errors_of, run
from support.processes import children
from support.servers import OncelogCluster

Start = Callable[..., OncelogCluster]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `oncelog up --secure` in one directory, also several times."""
    started: list[OncelogCluster] = []

    def begin(*arguments: str, secure: bool = True) -> OncelogCluster:
        started.append(OncelogCluster(tmp_path, arguments=(*(("--secure",) if secure else ()), *arguments)))
        return started[-1]

    yield begin
    for each in started:
        each.stop()


def printed(cluster: OncelogCluster) -> str:
    """Return the three lines for a client that the last start has printed."""
    last = errors_of(cluster).rpartition("To connect from a shell:\n")[2]
    lines = re.match(r"(?:  .*\n){3}", last)
    assert lines is not None, errors_of(cluster)
    return lines[0]


def shell(cluster: OncelogCluster, more: str = "") -> subprocess.CompletedProcess[str]:
    """Paste the printed lines into a shell, then run more commands."""
    folder = Path(sys.executable).parent
    script = f"PATH={folder}:$PATH\nset -e\n{printed(cluster)}\n{more}"
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=120, check=False)


def client_file(cluster: OncelogCluster) -> Path:
    return cluster.data / "secure" / "client.properties"


def options(cluster: OncelogCluster) -> dict[str, str]:
    """Return the options of our client in the file."""
    return parse_properties(client_file(cluster).read_text())


def password(cluster: OncelogCluster) -> str:
    return parse_jaas(options(cluster)["sasl.jaas.config"], "SCRAM-SHA-512")["password"]


@pytest.mark.parametrize("brokers", [1, 3])
def test_printed_lines_are_all_that_a_client_needs(start: Start, brokers: int) -> None:
    cluster = start("--brokers", str(brokers))
    create = f"oncelog topic create t --replication-factor {brokers} -c min.insync.replicas={brokers}"
    done = shell(cluster, f"{create}\necho hello | oncelog topic produce t\noncelog topic consume t -e")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("hello\n")
    before = {path.name: path.read_bytes() for path in client_file(cluster).parent.iterdir()}
    cluster.stop()
    cluster = start("--brokers", str(brokers))
    assert {path.name: path.read_bytes() for path in client_file(cluster).parent.iterdir()} == before
    assert shell(cluster, "oncelog topic consume t -e").stdout.endswith("hello\n")


def test_transactions_cross_three_brokers(start: Start) -> None:
    cluster = start("--brokers", "3")
    with Admin(cluster.bootstrap, options(cluster)) as admin:
        admin.create_topics("t", 3, 3, {"min.insync.replicas": "3"})
    with (
        Producer(cluster.bootstrap, {**options(cluster), "transactional.id": "x"}) as producer,
        producer.transaction() as transaction,
    ):
        for partition in range(3):
            transaction.send("t", b"x", partition=partition)


def test_librdkafka_takes_the_renamed_options(start: Start) -> None:
    cluster = start()
    own = options(cluster)
    login = parse_jaas(own["sasl.jaas.config"], own["sasl.mechanism"])
    renamed = {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": own["security.protocol"],
        "ssl.ca.location": own["ssl.truststore.location"],
        "sasl.mechanism": own["sasl.mechanism"],
        "sasl.username": login["username"],
        "sasl.password": login["password"],
    }
    producer = confluent_kafka.Producer(renamed)
    producer.produce("t", b"theirs")
    assert producer.flush(30) == 0
    with Consumer(cluster.bootstrap, {**own, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([("t", 0)])
        assert [record.value for record in consumer.poll(30)] == [b"theirs"]


def test_clients_need_the_login_and_other_users_need_permissions(start: Start) -> None:
    cluster = start()
    quick = {"default.api.timeout.ms": 3000}
    with Admin(cluster.bootstrap, quick) as plain, pytest.raises(errors.KafkaError):
        plain.list_topics()
    line = options(cluster)["sasl.jaas.config"]
    wrong = {**options(cluster), "sasl.jaas.config": line.replace('password="', 'password="x')}
    with Admin(cluster.bootstrap, {**wrong, **quick}) as other, pytest.raises(errors.AuthenticationError):
        other.list_topics()
    with Admin(cluster.bootstrap, options(cluster)) as admin:
        admin.create_topics("t")
        admin.alter_user_scram_credentials(UserScramCredentialUpsertion("alice", "hunter2"))
    line = line.replace(password(cluster), "hunter2").replace("admin", "alice")
    with Admin(cluster.bootstrap, {**options(cluster), "sasl.jaas.config": line}) as alice:
        assert list(alice.list_topics()) == []
        with pytest.raises(errors.AuthorizationError):
            alice.create_topics("u")


def test_nothing_shows_a_password(start: Start) -> None:
    cluster = start()
    secrets = [password(cluster), (cluster.data / "secure" / "broker.password").read_text().strip()]
    with Admin(cluster.bootstrap, options(cluster)) as admin:
        shown = str(admin.describe_configs("broker", 1))
    titles = [Path(f"/proc/{pid}/cmdline").read_text() for pid in (cluster.process.pid, *children(cluster.process.pid))]
    for text in (errors_of(cluster), shown, *titles):
        assert not [secret for secret in secrets if secret in text]


def test_changed_password_and_new_files(start: Start) -> None:
    cluster = start()
    former = options(cluster)
    with Admin(cluster.bootstrap, former) as admin:
        admin.alter_user_scram_credentials(UserScramCredentialUpsertion("admin", "hunter2-changed"))
    cluster.stop()
    cluster = start()
    assert "has not the present password of user admin" in errors_of(cluster)
    assert shell(cluster).returncode == 1
    cluster.stop()
    client_file(cluster).write_text(client_file(cluster).read_text().replace(password(cluster), "hunter2-changed"))
    cluster = start()
    assert shell(cluster).returncode == 0
    cluster.stop()
    for path in client_file(cluster).parent.iterdir():
        path.unlink()
    client_file(cluster).parent.rmdir()
    cluster = start()
    assert "the user admin existed, and has a new password" in errors_of(cluster)
    assert password(cluster) != "hunter2-changed"
    assert shell(cluster).returncode == 0


def test_advertised_name_is_in_the_certificate(start: Start) -> None:
    start("--advertise", "localhost").stop()
    cluster = start("--host", "127.0.0.2", "--advertise", "localhost")
    assert "created a new certificate" in errors_of(cluster)
    with Admin(f"127.0.0.2:{cluster.bootstrap.rpartition(':')[2]}", options(cluster)) as admin:
        assert [each.host for each in admin.describe_cluster().brokers] == ["localhost"]


def test_later_start_without_the_option_warns(start: Start) -> None:
    start().stop()
    assert "was created by --secure, which this start lacks" in errors_of(start(secure=False))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--set", "listeners=PLAINTEXT://127.0.0.1:0"), "--secure chooses listeners itself"),
        (("--set", "super.users=User:x"), "--secure chooses super.users itself"),
        (("--set", "listener.name.sasl_ssl.ssl.client.auth=none"), "--secure chooses listener.name.sasl_ssl"),
        (("--add-scram-file", "users"), "--secure adds the user admin itself"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    (tmp_path / "users").write_text("SCRAM-SHA-512=[name=admin,password=x]\n")
    status, _, err = run("up", "--secure", "--port", "0", "--data", "data", *arguments, cwd=tmp_path)
    assert (status, sentence in err) == (2, True), err
    assert not (tmp_path / "data" / "secure").exists()


def test_damaged_files_are_named(start: Start, tmp_path: Path) -> None:
    start().stop()
    (tmp_path / "data" / "secure" / "broker.pem").unlink()
    status, _, err = run("up", "--secure", "--port", "0", "--data", tmp_path / "data")
    assert (status, err.count("\n")) == (1, 1)
    assert "broker.pem missing in" in err


def test_other_user_can_be_added_at_the_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "users").write_text("SCRAM-SHA-256=[name=alice,password=x]\n")
    cluster = start("--add-scram-file", str(tmp_path / "users"))
    tool = Tool(cluster.bootstrap)
    tool.env["ONCELOG_COMMAND_CONFIG"] = str(client_file(cluster))
    assert [row["user"] for row in tool.json("user", "list")] == ["admin", "alice"]
