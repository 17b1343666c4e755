"""Move the data directory of a secured broker from Apache Kafka to oncelog and back: users and tokens still log in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from oncelog import Admin
from oncelog.client.admin.tokens import DelegationToken
from oncelog.net.sasl import Scram
from support.apache_kafka import KafkaNode
from support.attacker import Attacker, choose, say
from support.delegation_token_servers import KEY, KafkaWithTokens
from support.processes import wait_until
from support.secured_kafka import GUEST, GUEST_PASSWORD, PASSWORD, USER
from support.servers import OncelogCluster

MECHANISM = "SCRAM-SHA-512"


def admin(address: str) -> Admin:
    """Return an administrator that has logged in as `alice`."""
    login = {"sasl_mechanism": MECHANISM, "sasl_username": USER, "sasl_password": PASSWORD}
    return Admin(address, security_protocol="SASL_PLAINTEXT", **login)


def logs_in(address: str, user: str, password: str, *, token: bool = False) -> bool:
    """Return whether a user or, by its id and HMAC, a token can log in."""
    client = Scram(MECHANISM, user, password, "clients-nonce", token=token)
    with Attacker(address) as attacker:
        _, challenge = attacker.call(choose(MECHANISM), say(client.first()))
        if challenge.error_code:  # Kafka rejects an unknown user in this step
            return False
        final = client.answer(bytes(challenge.auth_bytes))
        assert final is not None
        [done] = attacker.call(say(final))
        return not done.error_code


def check(address: str, token: DelegationToken, gone: DelegationToken) -> None:
    """Check that both users and the token can log in, and that the removed token and wrong passwords cannot."""
    assert logs_in(address, USER, PASSWORD)
    assert logs_in(address, GUEST, GUEST_PASSWORD)
    assert logs_in(address, token.token_id, token.hmac, token=True)
    assert not logs_in(address, GUEST, PASSWORD)
    assert not logs_in(address, token.token_id, gone.hmac, token=True)
    assert not logs_in(address, gone.token_id, gone.hmac, token=True)


def test_users_and_tokens_move_to_oncelog_and_back(tmp_path: Path) -> None:
    kafka = KafkaWithTokens(tmp_path / "kafka")
    try:
        address = kafka.addresses["OPEN"]
        with admin(address) as root:
            token, gone = [root.create_delegation_token(renewers=["User:carol"]) for _ in range(2)]
            wait_until(lambda: len(root.describe_delegation_tokens()) == 2, "Kafka knows both tokens")
            root.expire_delegation_token(gone.hmac)
            wait_until(lambda: len(root.describe_delegation_tokens()) == 1, "Kafka has removed a token")
        check(address, token, gone)
        KafkaNode.stop(kafka)  # its ports stay its own
        cluster = OncelogCluster(
            tmp_path / "oncelog",
            settings={
                "log.dirs": str(kafka.data),
                "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": MECHANISM,
                "sasl.mechanism.inter.broker.protocol": MECHANISM,
                "scram-sha-512.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required "
                    f'username="{USER}" password="{PASSWORD}";'
                ),
                "delegation.token.secret.key": KEY,
            },
        )
        try:
            check(cluster.bootstrap, token, gone)
            with admin(cluster.bootstrap) as root:
                [found] = root.describe_delegation_tokens()
                assert found == token
                later = root.create_delegation_token()
        finally:
            cluster.stop()
        program = Path(sys.executable).with_name("oncelog")
        command = [program, "export", "--data", cluster.data, "--set", f"log.dirs={kafka.data}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert "it has 4 passwords of SCRAM users" in done.stdout
        assert "it has 2 delegation tokens, which need the same delegation.token.secret.key in Kafka" in done.stdout
        kafka.start()
        check(address, token, gone)
        assert logs_in(address, later.token_id, later.hmac, token=True)
    finally:
        kafka.stop()
