"""Run the Spark of spark_formats.py. The argument is a JSON object, and the output a JSON object for each result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from spark_side import cpu_seconds, session, tell


class Reads:
    """The ways to read a topic. Each returns a DataFrame with the fields of the values."""

    def __init__(self, work: dict[str, Any]) -> None:
        self.work = work
        self.spark = session({"format": "oncelog", "settings": {}, **work})

    def source(self, form: str, topic: str, **options: str) -> Any:
        """Return a batch read of a whole topic."""
        read = self.spark.read.format(form).option("kafka.bootstrap.servers", self.work["bootstrap"])
        return read.option("subscribe", topic).options(**options).load()

    def plain(self, topic: str) -> Any:
        """Return the bytes."""
        return self.source("oncelog", topic).select("value")

    def typed(self, topic: str) -> Any:
        """Return what our source decodes."""
        options = {"valueSchema": self.work["ddl"]} if topic == "json" else {"schemaRegistryUrl": self.work["registry"]}
        return self.source("oncelog", topic, valueFormat=topic, **options).select("value.*")

    def function(self, topic: str, form: str = "oncelog") -> Any:
        """Return what Spark's functions decode."""
        from pyspark.sql.avro.functions import from_avro
        from pyspark.sql.functions import col, expr, from_json

        rows = self.source(form, topic)
        if topic == "json":
            decoded = from_json(col("value").cast("string"), self.work["ddl"])
        else:
            decoded = from_avro(expr("substring(value, 6)"), self.work["schema"])
        return rows.select(decoded.alias("value")).select("value.*")

    def connector(self, topic: str) -> Any:
        """Return the same from Spark's connector."""
        return self.function(topic, "kafka")

    def check(self) -> None:
        """Raise AssertionError if two ways return different rows."""
        for topic in ("json", "avro"):
            sums = []
            for way in ("typed", "function", "connector"):
                rows = getattr(self, way)(topic).selectExpr("count(*)", "sum(id)", "sum(address.zip)", "count(note)")
                sums.append(tuple(rows.first()))
            assert len(set(sums)) == 1, (topic, sums)
            assert sums[0][0] == self.work["records"], sums

    def run(self) -> None:
        """Read everything once unmeasured, then `rounds` times, and print each result."""
        self.check()
        for number in range(self.work["rounds"] + 1):
            for topic in ("json", "avro"):
                for way in self.work["ways"] if number % 2 else reversed(self.work["ways"]):
                    read: Callable[[str], Any] = getattr(self, way)
                    before = cpu_seconds()
                    read(topic).write.format("noop").mode("overwrite").save()
                    if number:
                        tell(f"{topic} {way}", (cpu_seconds() - before) * 1e6 / self.work["records"])


def main() -> None:
    """Run from the command line."""
    reads = Reads(json.loads(sys.argv[1]))
    try:
        reads.run()
    finally:
        reads.spark.stop()


if __name__ == "__main__":
    main()
