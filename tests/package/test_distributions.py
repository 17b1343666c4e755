"""What `pip install oncelog` gives: the contents of the distributions, and the wheel in environments of its own."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.version import __version__
from support.certificates import authority, signed_by
from support.installations import Installation, build, described
from support.processes import ManagedProcess

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
MADE = {"__pycache__"}

RECORDS = """
import asyncio, sys
import oncelog, oncelog.aio

def sent(topic):
    with oncelog.Producer(sys.argv[1], transactional_id="writer") as producer:
        with producer.transaction() as transaction:
            transaction.send(topic, "to be", key="hamlet")

async def sent_async(topic):
    async with oncelog.aio.Producer(sys.argv[1]) as producer:
        await (await producer.send(topic, "or not"))

with oncelog.Admin(sys.argv[1]) as admin:
    admin.create_topics(["records"])
sent("records")
asyncio.run(sent_async("records"))
with oncelog.Consumer(sys.argv[1], group_id="g", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["records"])
    values = []
    for record in consumer:
        values.append(record.value)
        if len(values) == 2:
            break
    consumer.commit()
    print(values)
    try:
        next(consumer.tables())
    except ImportError as error:
        print(error)
try:
    from oncelog.spark import register
except ImportError as error:
    print(error)
"""

TESTING = """
import importlib.util
from oncelog import Producer
from oncelog.testing import Broker, assert_exactly_once

with Broker(topics=["words", "copies"]) as broker:
    with Producer(broker.bootstrap_servers) as producer:
        producer.send("words", "to be")
        producer.send("copies", "to be")
    assert_exactly_once("words", "copies", bootstrap_servers=broker.bootstrap_servers)
print(importlib.util.find_spec("pytest"))
"""

TABLES = """
import sys
import pyarrow as pa
from oncelog import Admin, Consumer, Producer
from oncelog.formats import Json

with Admin(sys.argv[1]) as admin:
    admin.create_topics(["tables"])
row = Json(pa.schema([("id", pa.int64())]))
with Producer(sys.argv[1]) as producer:
    producer.send_table("tables", pa.table({"id": [1, 2, 3]}), value=row)
with Consumer(sys.argv[1], auto_offset_reset="earliest") as consumer:
    consumer.assign([("tables", 0)])
    print(next(consumer.tables(value=row)).column("value").to_pylist())
try:
    from oncelog.formats import Avro
    Avro('"long"')
except ImportError as error:
    print(error)
"""

SQL = """
import sys

import oncelog
import polars as pl

with oncelog.Admin(sys.argv[1]) as admin:
    admin.create_topics("sql")
with oncelog.Producer(sys.argv[1]) as producer:
    for number in (1, 2):
        producer.send("sql", b'{"id": %d}' % number)
with oncelog.sql("select sum(id), count(*) from sql", sys.argv[1]) as query:
    print([tuple(map(int, row)) for row in query.rows()])
frame = oncelog.scan("sql", sys.argv[1]).polars()
print(frame.filter(pl.col("_offset") == 1).collect()["id"].to_list())
"""
AVRO = """
import sys
import pyarrow as pa
from oncelog import Admin, Consumer, Producer
from oncelog.formats import Avro

with Admin(sys.argv[1]) as admin:
    admin.create_topics(["avro"])
order = Avro('{"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}')
with Producer(sys.argv[1]) as producer:
    producer.send_table("avro", pa.table({"id": [1, 2, 3]}), value=order)
with Consumer(sys.argv[1], auto_offset_reset="earliest") as consumer:
    consumer.assign([("avro", 0)])
    print(next(consumer.tables(value=order)).column("value").to_pylist())
"""

PKCS12 = """
import sys
from oncelog import Producer

store = {"ssl_keystore_location": sys.argv[1], "ssl_keystore_password": "secret"}
Producer("localhost:1", security_protocol="SSL", **store).close()
print("loaded")
"""

CONSOLE = """
import subprocess, sys, urllib.request
command = [sys.executable, "-m", "oncelog", "console", "-b", sys.argv[1], "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as console:
    line = console.stdout.readline().strip()
    if line.startswith("CONSOLE="):
        for page in ("", "topics", "static/console.css", "static/console.js", "static/icon.svg"):
            with urllib.request.urlopen(line.removeprefix("CONSOLE=") + page, timeout=60) as answer:
                print(page, answer.status)
    else:
        print(line)
    console.terminate()
"""

SECURE = """
from oncelog.testing.broker import Broker, BrokerStartError

try:
    with Broker(secure=True) as broker:
        print(broker.client_options["security.protocol"])
except BrokerStartError as error:
    print(error)
"""

OAUTH = """
import sys
from oncelog.testing.broker import Broker, BrokerStartError

settings = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": sys.argv[1],
}
try:
    with Broker(settings):
        print("started")
except BrokerStartError as error:
    print(error)
"""

SPARK = """
import os, sys
import oncelog.spark
from pyspark.sql import SparkSession

os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
oncelog.spark.register(spark)
broker = {"kafka.bootstrap.servers": sys.argv[1]}
words = spark.createDataFrame([("to be",), ("or not",)], "value string").coalesce(1)
once = {"topic": "words", "transactionalIdPrefix": "load", "txnAppId": "load", "txnVersion": "1"}
for attempt in range(2):
    words.write.format("oncelog").options(**broker, **once).mode("append").save()
read = spark.read.format("oncelog").options(**broker, subscribe="words").load()
print([row.value.decode() for row in read.select("value").collect()])
spark.stop()
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xzf", sdist, "-C", folder], check=True)
    (project,) = folder.iterdir()
    return project


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution."""
    return build("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An installation without extras."""
    return Installation(tmp_path_factory.mktemp("plain"), wheel)


@pytest.fixture(scope="module")
def bootstrap(plain: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that runs from the installation without extras."""
    folder = tmp_path_factory.mktemp("broker")
    process = ManagedProcess([plain.oncelog, "up", "--port", "0", "--data", folder / "data"], folder, "oncelog-up")
    try:
        process.wait_for(lambda: any(process.lines()), "oncelog up prints its address")
        yield next(process.lines()).removeprefix("BROKERS=")
    finally:
        status = process.stop()
    assert status == 0, process.output()


def files(folder: Path) -> set[str]:
    """The files below `folder`, as paths relative to it."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if not MADE & set(path.parts)}


def test_source_distribution_has_the_files_of_a_build_and_no_others(unpacked: Path) -> None:
    own = {path for path in files(unpacked) if not path.startswith("src/")}
    assert own == {".gitignore", "LICENSE", "PKG-INFO", "README.md", "hatch_build.py", "pyproject.toml"}
    assert files(unpacked / "src") == files(SOURCE)


def test_wheel_has_the_packages_with_their_types_and_the_license(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"oncelog-{__version__}.dist-info"
    assert {name for name in names if not name.startswith(info)} == files(SOURCE) | {"oncelog/not_compiled.txt"}
    assert {"oncelog/py.typed", f"{info}/licenses/LICENSE"} <= names


def test_build_is_reproducible(wheel: Path, tmp_path: Path) -> None:
    assert build("wheel", ROOT, tmp_path).read_bytes() == wheel.read_bytes(), "from the sources and from the sdist"


def test_every_extra_is_tested_or_for_the_repository(wheel: Path) -> None:
    extras = set(described(wheel).metadata.get_all("Provides-Extra", []))
    assert extras == {"arrow", "avro", "console", "oauth", "pkcs12", "secure", "spark", "sql"} | {
        "conformance",
        "demo",
        "dev",
        "docs",
    }


def test_there_is_one_version(wheel: Path, plain: Installation) -> None:
    assert described(wheel).version == __version__
    assert plain.command("--version") == f"oncelog {__version__} (pure Python: the build ran with ONCELOG_PURE=1)\n"
    assert plain.run("import oncelog; print(oncelog.__version__)") == f"{__version__}\n"


def test_without_extras_the_command_line_works(plain: Installation, bootstrap: str) -> None:
    plain.command("topic", "create", "lines", "-b", bootstrap)
    subprocess.run([plain.oncelog, "topic", "produce", "lines", "-b", bootstrap], input=b"to\nbe\n", check=True)
    assert plain.command("topic", "consume", "lines", "-b", bootstrap, "-o", "beginning", "-e") == "to\nbe\n"
    assert "lines" in plain.command("topic", "list", "-b", bootstrap)
    assert plain.command("txn", "list", "-b", bootstrap)


def test_without_extras_clients_move_records_and_name_the_extra_for_more(plain: Installation, bootstrap: str) -> None:
    values, tables, spark = plain.run(RECORDS, bootstrap).splitlines()
    assert values == "[b'to be', b'or not']"
    assert tables == "tables require numba; run `pip install 'oncelog[arrow]'`"
    assert spark == "oncelog.spark needs pyspark 4.0 or later; install it with `pip install 'oncelog[spark]'`"


def test_without_extras_a_broker_for_tests_needs_no_pytest(plain: Installation) -> None:
    assert plain.run(TESTING) == "None\n"


def test_arrow_brings_tables_and_names_the_extra_for_avro(tmp_path: Path, wheel: Path, bootstrap: str) -> None:
    values, avro = Installation(tmp_path, wheel, "arrow").run(TABLES, bootstrap).splitlines()
    assert values == "[{'id': 1}, {'id': 2}, {'id': 3}]"
    assert avro == "Avro requires fastavro; run `pip install 'oncelog[avro]'`"


def test_sql_brings_duckdb_and_polars(tmp_path: Path, wheel: Path, bootstrap: str) -> None:
    assert Installation(tmp_path, wheel, "sql").run(SQL, bootstrap) == "[(3, 2)]\n[2]\n"


def test_avro_brings_avro(tmp_path: Path, wheel: Path, bootstrap: str) -> None:
    assert Installation(tmp_path, wheel, "avro").run(AVRO, bootstrap) == "[{'id': 1}, {'id': 2}, {'id': 3}]\n"


def test_pkcs12_brings_stores_with_certificates(tmp_path: Path, wheel: Path) -> None:
    store = tmp_path / "client.p12"
    issuer = authority()
    store.write_bytes(signed_by(issuer, "client").pkcs12(issuer, "secret"))
    assert Installation(tmp_path / "pkcs12", wheel, "pkcs12").run(PKCS12, str(store)) == "loaded\n"


def test_secure_brings_certificates(tmp_path: Path, wheel: Path, plain: Installation) -> None:
    missing = "--secure needs the package cryptography: pip install 'oncelog[secure]'"
    assert missing in plain.run(SECURE)
    assert Installation(tmp_path / "secure", wheel, "secure").run(SECURE) == "SASL_SSL\n"


def test_console_brings_its_pages(tmp_path: Path, wheel: Path, plain: Installation, bootstrap: str) -> None:
    assert "the console needs the package starlette: pip install 'oncelog[console]'" in plain.run(CONSOLE, bootstrap)
    pages = ("", "topics", "static/console.css", "static/console.js", "static/icon.svg")
    found = Installation(tmp_path / "console", wheel, "console").run(CONSOLE, bootstrap)
    assert found == "".join(f"{page} 200\n" for page in pages)


def test_oauth_brings_the_check_of_tokens(tmp_path: Path, wheel: Path, plain: Installation) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": []}')
    missing = "OAUTHBEARER needs the package joserfc: pip install 'oncelog[oauth]'"
    assert missing in plain.run(OAUTH, keys.as_uri())
    assert Installation(tmp_path / "oauth", wheel, "oauth").run(OAUTH, keys.as_uri()) == "started\n"


def test_spark_reads_and_writes_a_topic_exactly_once(
    tmp_path: Path, wheel: Path, plain: Installation, bootstrap: str
) -> None:
    plain.command("topic", "create", "words", "-b", bootstrap)
    with_spark = Installation(tmp_path, wheel, "spark")
    assert with_spark.run(SPARK, bootstrap).splitlines()[-1] == "['to be', 'or not']"
    assert "load" in with_spark.command("sink", "list", "load", "-b", bootstrap)
