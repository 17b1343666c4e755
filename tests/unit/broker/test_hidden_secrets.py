"""No `repr` of an object with a password shows it. Tracebacks, logs and debuggers use `repr`."""

from __future__ import annotations

import pytest

from oncelog.broker.config.settings import load
from oncelog.broker.process import Launch
from oncelog.net.credentials import Secret
from oncelog.net.sasl_server import PlainServer, ScramCredential
from oncelog.protocol.messages import alter_configs, incremental_alter_configs
from oncelog.protocol.messages.alter_user_scram_credentials import ScramCredentialUpsertion
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest

MARK = "correct-horse"
LINE = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="{MARK}";'
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": LINE,
    "ssl.keystore.passwrod": MARK,
    "ssl.key.password": MARK,
    "listener.name.other.ssl.keystore.password": MARK,
}


@pytest.mark.parametrize(
    "thing",
    [
        Launch(settings=SETTINGS),
        load(SETTINGS),
        PlainServer({"a": Secret(MARK)}),
        ScramCredential.decode("salt=Y29ycmVjdA==,stored_key=Y29ycmVjdA==,server_key=Y29ycmVjdA==,iterations=4096"),
        SaslAuthenticateRequest(auth_bytes=f"\0a\0{MARK}".encode()),
        ScramCredentialUpsertion(name="a", salted_password=MARK.encode()),
        alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=4, configs=[alter_configs.AlterableConfig(name="ssl.key.password", value=MARK)]
                )
            ]
        ),
        incremental_alter_configs.AlterableConfig(name="ssl.key.password", value=MARK),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_repr_shows_no_secret(thing: object) -> None:
    assert MARK not in repr(thing)
    assert MARK.encode()[:7] not in repr(thing).encode()
