"""Apache Kafka's own `KafkaDockerWrapper` and our broker read the same settings from the variables `KAFKA_...`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from oncelog.broker.config.sources import environment_settings
from oncelog.net.properties import parse_properties
from support.apache_kafka import java, new_id

VARIABLES = {
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
    "KAFKA_A_B": "1",
    "KAFKA_A__B": "2",
    "KAFKA_A___B": "3",
    "KAFKA_A____B": "4",
    "KAFKA_A_____B": "5",
    "KAFKA_A______B": "6",
    "KAFKA_X_KAFKA_Y": "7",
    "KAFKA_E": "",
    **dict.fromkeys(
        (
            *("KAFKA_VERSION", "KAFKA_HEAP_OPTS", "KAFKA_LOG4J_OPTS", "KAFKA_OPTS", "KAFKA_JMX_OPTS"),
            *("KAFKA_JVM_PERFORMANCE_OPTS", "KAFKA_GC_LOG_OPTS", "KAFKA_TOOLS_LOG4J_LOGLEVEL", "KAFKA_JMX_HOSTNAME"),
        ),
        "x",
    ),
}


def test_variables_are_the_settings_that_kafkas_image_writes(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("default", "mounted", "final")]
    for folder in folders:
        folder.mkdir()
    for name in ("log4j2.yaml", "tools-log4j2.yaml"):
        (folders[0] / name).write_text("Configuration:\n  Loggers:\n    Root:\n      level: INFO\n    Logger: []\n")
    options = [text for option, folder in zip("DMF", folders, strict=True) for text in (f"-{option}", folder)]
    subprocess.run(
        java("kafka.docker.KafkaDockerWrapper", "setup", *options),
        env={"PATH": os.environ["PATH"], "CLUSTER_ID": new_id(), **VARIABLES, "KAFKA_LOG_DIRS": str(tmp_path / "logs")},
        capture_output=True,
        timeout=300,
        check=False,  # the file is written before the tool formats directories
    )
    written = parse_properties((folders[2] / "server.properties").read_text())
    assert environment_settings(VARIABLES) == {key: value for key, value in written.items() if key != "log.dirs"}
