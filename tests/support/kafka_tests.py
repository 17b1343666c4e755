"""Run Apache Kafka's own integration tests of its clients, from their package on Maven, on brokers of oncelog.

The classes in `conformance/java/integration` start `oncelog up` where Kafka's tests would start Kafka's broker in their
own JVM. A test that needs Kafka's own objects, such as its log or its authorizer, is aborted, and counts as skipped.

The jars come from `$ONCELOG_KAFKA_TESTS`, otherwise from `.cache/kafka-tests` (`scripts/conformance` fetches them).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from support.apache_kafka import ROOT, SHORT_LIVED, java, kafka_libs
from support.processes import ManagedProcess
from support.suites import Outcomes, built, junit

PACKAGE = "org.apache.kafka.clients"
LAUNCHER = "org.junit.platform.console.ConsoleLauncher"


def kafka_test_jars() -> Path:
    """Return the folder with the jars of the tests. The FileNotFoundError says how to get them."""
    folder = Path(os.environ.get("ONCELOG_KAFKA_TESTS") or ROOT / ".cache" / "kafka-tests")
    if not any(folder.glob("kafka-clients-integration-tests-*.jar")):
        raise FileNotFoundError(f"no integration tests of Apache Kafka in {folder}: scripts/conformance fetches them")
    return folder


def run_kafka_tests(name: str, folder: Path, *, without: str = "", timeout: float = 900) -> Outcomes:
    """Run the tests of a class, such as `consumer.PlaintextConsumerTest`, and return the outcome of each method.

    Methods that match the regular expression `without` do not run. The reports and the brokers' data are in `folder`.
    """
    path = f"{kafka_libs()}/*{os.pathsep}{kafka_test_jars()}/*"
    classes = built("java/integration", "bash", "-c", f"javac -nowarn -d . -cp '{path}' *.java")
    settings = {
        "oncelog": Path(sys.executable).with_name("oncelog"),
        "java.io.tmpdir": folder,
        "junit.jupiter.extensions.autodetection.enabled": "true",  # Kafka's tests name their extension in META-INF
    }
    options = (*(f"-D{key}={value}" for key, value in settings.items()), *SHORT_LIVED)
    given: list[str | Path] = [
        "execute",
        "--disable-banner",
        "--disable-ansi-colors",
        "--reports-dir",
        folder,
        "-c",
        f"{PACKAGE}.{name}",
    ]
    command = java(LAUNCHER, *given, *(("--exclude-methodname", without) if without else ()), options=options)
    command[command.index("-cp") + 1] += f"{os.pathsep}{classes}{os.pathsep}{kafka_test_jars()}/*"
    process = ManagedProcess(command, folder, "tests")
    try:
        process.popen.wait(timeout)
    finally:
        process.kill()  # with the brokers, if the tests could not stop them
    print(process.output())
    report = folder / "TEST-junit-jupiter.xml"
    outcomes = sorted(junit(report).items(), key=lambda item: ("skipped", "passed", "failed").index(item[1]))
    return {re.sub(r"^.*\.(\w+)\(.*$", r"\1", case): how for case, how in outcomes}  # the worst of a method's runs
