"""`pip install oncelog` alone: everything that needs more names the missing extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

ABSENT = """
import asyncio, sys
from importlib.machinery import PathFinder

ABSENT = {"numba", "numpy", "llvmlite", "pyarrow", "pandas", "pyspark", "fastavro"}

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else super().find_spec(name, path, target)

sys.meta_path[:] = [Installed if finder is PathFinder else finder for finder in sys.meta_path]
import oncelog, oncelog.aio

async def send_async():
    async with oncelog.aio.Producer("localhost:1") as producer:
        await producer.send_table("t", object())

async def read_async():
    async with oncelog.aio.Consumer("localhost:1") as consumer:
        async for table in consumer.tables():
            raise AssertionError(table)

def send():
    with oncelog.Producer("localhost:1") as producer:
        producer.send_table("t", object())

def read():
    with oncelog.Consumer("localhost:1") as consumer:
        next(consumer.tables())

def register():
    import oncelog.spark
    oncelog.spark.register(None)

def formats():
    import oncelog.formats

def avro():
    from oncelog.serialization import JsonSerializer, SchemaRegistry
    from oncelog.serialization import AvroSerializer

doings = {
    "send": send, "send_async": lambda: asyncio.run(send_async()), "read": read,
    "read_async": lambda: asyncio.run(read_async()), "register": register, "formats": formats,
    "avro": avro,
}
for name, do in doings.items():
    try:
        do()
    except Exception as error:
        print(name, f"{type(error).__name__}: {error}", sep="|")
"""


@pytest.fixture(scope="module")
def messages() -> dict[str, str]:
    done = subprocess.run([sys.executable, "-c", ABSENT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.split("|", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", ["send", "send_async", "read", "read_async", "formats"])
def test_missing_extra_for_tables_is_named(messages: dict[str, str], name: str) -> None:
    assert messages[name] == "ImportError: tables require numba; run `pip install 'oncelog[arrow]'`"


def test_missing_extra_for_avro_records_is_named(messages: dict[str, str]) -> None:
    assert messages["avro"] == "ImportError: Avro requires fastavro; run `pip install 'oncelog[avro]'`"


def test_missing_extra_for_spark_is_named(messages: dict[str, str]) -> None:
    expected = "ImportError: oncelog.spark needs pyspark 4.0 or later; install it with `pip install 'oncelog[spark]'`"
    assert messages["register"] == expected
