"""Write an archive of the classes that Apache Kafka loads: python -m support.class_archive FILE.

It is an archive of Java's class data sharing. With it, a broker needs half of the CPU time until it listens. A JVM
ignores the archive of another version of Java, or of other jars.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from oncelog import Admin, Consumer, Producer
from support.apache_kafka import SHORT_LIVED, ApacheKafka


def write(archive: Path) -> None:
    """Run a broker that serves common requests. Its JVM writes the archive when it ends."""
    with tempfile.TemporaryDirectory() as folder:
        dumped = Path(folder, "classes")
        kafka = ApacheKafka(Path(folder, "kafka"), options=(*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={dumped}"))
        try:
            with Admin(kafka.bootstrap) as admin:
                admin.create_topics("t")
            with Producer(kafka.bootstrap, transactional_id="t") as producer, producer.transaction():
                producer.send("t", b"x")
            with Consumer(kafka.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
                consumer.subscribe(["t"])
                consumer.poll(30.0)
                consumer.commit()
        finally:
            kafka.stop()
        part = archive.with_suffix(".part")
        shutil.copy(dumped, part)
        part.replace(archive)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
