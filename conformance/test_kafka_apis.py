"""The table of Apache Kafka's APIs in the documentation is that of the jar."""

from __future__ import annotations

import json
import re
import zipfile

from docs_site.kafka_apis import APIS, KAFKA_VERSION, Api
from support.apache_kafka import kafka_libs

_REQUEST = re.compile(r"common/message/\w+Request\.json")
_COMMENT = re.compile(r"(?<!:)//.*")


def apis_of_the_jar() -> dict[int, Api]:
    """Return the APIs that a broker serves, with their stable versions."""
    found = {}
    with zipfile.ZipFile(kafka_libs() / f"kafka-clients-{KAFKA_VERSION}.jar") as jar:
        for name in filter(_REQUEST.fullmatch, jar.namelist()):
            message = json.loads(_COMMENT.sub("", jar.read(name).decode()))
            if "broker" in message.get("listeners", ()) and message["validVersions"] != "none":
                first, _, last = message["validVersions"].partition("-")
                stable = int(last or first) - bool(message.get("latestVersionUnstable"))
                found[message["apiKey"]] = Api(message["name"].removesuffix("Request"), int(first), stable)
    return found


def test_table_of_kafkas_apis() -> None:
    assert apis_of_the_jar() == APIS
