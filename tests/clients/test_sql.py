"""Query topics with SQL, and read them as tables: `oncelog.sql` and `oncelog.scan`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import confluent_kafka
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import oncelog
from oncelog import Admin, Consumer, Producer, errors
from oncelog.tables.choosing import Wanted
from oncelog.tables.query import Query
from oncelog.tables.ranges import Found, read
from support.processes import wait_until
from support.servers import Server

HOUR_MS = 3_600_000
BEGIN_MS = 1_700_000_000_000


def orders(server: Server, admin: Admin, topic: str, *, hours: int = 10, partitions: int = 2) -> pa.Table:
    """Write 100 orders an hour for some hours, in transactions, and return them in their order."""
    admin.create_topics(topic, partitions=partitions)
    countries = ["fr", "de", "it"]
    rows = [
        {"id": number, "country": countries[number % 3], "price": number / 4, "tags": {"even": number % 2 == 0}}
        for number in range(hours * 100)
    ]

    def send(producer: Producer, hour: int) -> None:
        for row in rows[hour * 100 : hour * 100 + 100]:
            time, where = BEGIN_MS + hour * HOUR_MS + int(row["id"]) % 100, int(row["id"]) % partitions
            producer.send(topic, json.dumps(row), key=f"k{row['id']}", partition=where, timestamp=time)

    with Producer(server.bootstrap) as producer:
        for hour in range(hours - 1):
            send(producer, hour)
    with Producer(server.bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            send(producer, hours - 1)
        producer.begin_transaction()
        producer.send(topic, json.dumps({"id": -1, "country": "aborted"}), partition=0)
        producer.flush()
        producer.abort_transaction()
    return pa.Table.from_pylist(rows)


def read_counts(query: Query) -> tuple[int, int]:
    (only,) = query.reads()
    assert only.found is not None
    return only.found.counts()


def test_topic_is_a_table(server: Server, admin: Admin, name: str) -> None:
    topic = name
    rows = orders(server, admin, topic)
    connection = duckdb.connect()
    connection.register("rows", rows)
    with oncelog.sql(
        f'select country, count(*) n, sum(price) s from "{topic}" group by 1 order by 1', server.bootstrap
    ) as query:
        wanted = connection.sql("select country, count(*) n, sum(price) s from rows group by 1 order by 1").fetchall()
        assert query.rows() == wanted
        assert query.arrow().to_pylist() == [{"country": c, "n": n, "s": s} for c, n, s in wanted]
        assert query.polars().rows() == wanted


@pytest.mark.parametrize(
    ("condition", "share"),
    [
        ("_timestamp >= make_timestamptz({after}::bigint * 1000)", 0.3),
        ("_timestamp > make_timestamptz({after}::bigint * 1000 - 1) and country = 'fr'", 0.3),
        ("_offset >= 450", 0.2),
        ("_partition = 1 and _offset between 10 and 59", 0.06),
        ("_offset < 10 or _offset between 20 and 29", 0.07),
        ("_partition = 7", 0.0),
        ("_timestamp < make_timestamptz({after}::bigint * 1000)", 1.0),
        ("not _offset >= 10", 0.03),
        ("country = '_offset < 5'", 1.0),
        ("_timestamp >= (select make_timestamptz({after}::bigint * 1000))", 1.0),
    ],
)
def test_conditions_limit_what_is_read(server: Server, admin: Admin, name: str, condition: str, share: float) -> None:
    """The result is that of the same condition on all records, which DuckDB reads from a table."""
    topic = name
    orders(server, admin, topic)
    condition = condition.format(after=BEGIN_MS + 7 * HOUR_MS)
    with oncelog.sql(f'select * from "{topic}"', server.bootstrap) as query:
        everything = query.arrow()
    with oncelog.sql(f'select id from "{topic}" where {condition} order by 1', server.bootstrap) as query:
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("everything", everything)
        assert query.rows() == connection.sql(f"select id from everything where {condition} order by 1").fetchall()
        offsets, whole = read_counts(query)
    assert offsets <= whole * share + 4  # the markers of transactions have offsets, too
    assert share == 0 or offsets > 0


def test_pivot_with_values_limits_what_is_read(server: Server, admin: Admin, name: str) -> None:
    orders(server, admin, name)
    source = f'(select country, id % 2 as odd from "{name}" where _offset < 30)'
    for text in (
        f"pivot {source} on country in ('fr', 'de') using count(*) group by odd order by odd",
        f"from {source} pivot (count(*) for country in ('fr', 'de') group by odd) order by odd",
    ):
        with oncelog.sql(text, server.bootstrap) as query:
            assert query.rows() == [(0, 10, 10), (1, 10, 10)]
            assert read_counts(query)[0] == 60
            assert query.reads()[0].schema.names == ["id", "country", "_offset"]
    with oncelog.sql(
        f'unpivot (from "{name}" where _offset = 3) on price into name n value v', server.bootstrap
    ) as query:
        assert query.arrow().select(["n", "v"]).to_pylist() == [{"n": "price", "v": 1.5}, {"n": "price", "v": 1.75}]
    for text in (f'describe "{name}"', f'describe from "{name}"', f'summarize "{name}"'):
        with oncelog.sql(text, server.bootstrap) as query:
            assert [row[0] for row in query.rows()][:4] == ["id", "country", "price", "tags"]


def test_time_until_ends_the_reading_if_the_disorder_is_known(server: Server, admin: Admin, name: str) -> None:
    """A marker of a transaction has the time of its writing, and is no record."""
    admin.create_topics(name)
    with Producer(server.bootstrap, transactional_id=name) as producer:
        for hour in (*range(10), 7, *range(11, 20)):
            with producer.transaction():
                producer.send(name, json.dumps({"hour": hour}), timestamp=BEGIN_MS + hour * HOUR_MS)
    end_us = (BEGIN_MS + 8 * HOUR_MS) * 1000
    text = f'select hour from "{name}" where _timestamp < make_timestamptz({end_us}::bigint)'
    for disorder in (None, timedelta(hours=3)):
        with oncelog.sql(text, server.bootstrap, max_disorder=disorder) as query:
            assert sorted(query.rows()) == [(hour,) for hour in sorted((*range(8), 7))]
    beyond = {(name, 0): (0, 1_000_000)}  # a read to there never ends
    with Consumer(server.bootstrap, auto_offset_reset="none") as consumer:
        part = Found(name, consumer.topic_id(name), beyond, beyond)
        found = pa.concat_tables(read(consumer, part, end_us + 3 * HOUR_MS * 1000))
    assert len(found) >= 12


def test_records_that_are_out_of_order_are_found(server: Server, admin: Admin, name: str) -> None:
    topic = name
    admin.create_topics(topic)
    times = [5, 1, 9, 3, 7, 2, 8, 2, 6]
    with Producer(server.bootstrap) as producer:
        for time in times:
            producer.send(topic, b'{"t": %d}' % time, timestamp=BEGIN_MS + time)
    for low in range(11):
        for high in range(low, 11):
            text = (
                f'select t from "{topic}" where _timestamp >= make_timestamptz({(BEGIN_MS + low) * 1000}::bigint) '
                f"and _timestamp < make_timestamptz({(BEGIN_MS + high) * 1000}::bigint) order by _offset"
            )
            with oncelog.sql(text, server.bootstrap) as query:
                assert [time for (time,) in query.rows()] == [time for time in times if low <= time < high]


def test_now_is_the_same_when_planning_and_reading(server: Server, admin: Admin, name: str) -> None:
    topic = name
    admin.create_topics(topic)
    with Producer(server.bootstrap) as producer:
        producer.send(topic, b'{"a": 1}')
    with oncelog.sql(f'select now(), _timestamp <= now() + interval 1 day from "{topic}"', server.bootstrap) as query:
        assert query.rows() == query.rows()


def test_topics_join_each_other_and_files(server: Server, admin: Admin, name: str, tmp_path: Path) -> None:
    topic, names = name, f"{name}-names"
    rows = orders(server, admin, topic)
    admin.create_topics(names)
    with Producer(server.bootstrap) as producer:
        for short, full in (("fr", "France"), ("de", "Germany"), ("it", "Italy")):
            producer.send(names, json.dumps({"short": short, "full": full}))
    pq.write_table(pa.table({"short": ["fr", "de"], "rate": [1.5, 2.5]}), tmp_path / "rates.parquet")
    (tmp_path / "codes.csv").write_text("short,code\nfr,33\nde,49\n")
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute("create table capital (short text primary key, city, people integer, area real, flag blob)")
        shop.executemany(
            "insert into capital values (?, ?, ?, ?, ?)",
            [("fr", "Paris", 2_100_000, 105.4, b"\x00\xff"), ("de", 7, None, None, None)],
        )
    shop.close()
    with oncelog.sql(
        f"""
        select n."full", code, city, people, area, flag, count(*), sum(o.price * r.rate)
        from "{topic}" o join "{names}" n on n.short = o.country
        join '{tmp_path}/rates.parquet' r on r.short = o.country
        join '{tmp_path}/codes.csv' c on c.short = o.country
        left join shop.capital k on k.short = o.country
        where o.id in (select id from "{topic}" where id >= 50) group by all order by 1
        """,
        server.bootstrap,
        sqlite={"shop": str(tmp_path / "shop.db")},
    ) as query:
        found = query.rows()
    prices = {
        country: [row["price"] for row in rows.to_pylist() if row["country"] == country and row["id"] >= 50]
        for country in ("fr", "de")
    }
    assert found == [
        ("France", 33, "Paris", 2_100_000, 105.4, b"\x00\xff", len(prices["fr"]), sum(prices["fr"]) * 1.5),
        ("Germany", 49, "7", None, None, None, len(prices["de"]), sum(prices["de"]) * 2.5),
    ]


def test_topic_can_be_scanned_as_arrow_polars_and_duckdb(server: Server, admin: Admin, name: str) -> None:
    topic = name
    rows = orders(server, admin, topic)
    scanned = oncelog.scan(topic, server.bootstrap)
    assert scanned.reader().read_all().sort_by("id").select(["id", "country", "price", "tags"]) == rows
    since = datetime.fromtimestamp(BEGIN_MS / 1000, UTC) + timedelta(hours=9)
    part = oncelog.scan(topic, server.bootstrap, since=since, columns=["country", "id"])
    assert part.schema.names == ["id", "country"]
    assert sorted(part.reader().read_all().column("id").to_pylist()) == list(range(900, 1000))
    frame = scanned.polars()
    assert frame.select(pl.len()).collect().item() == 1000
    found = frame.filter((pl.col("_timestamp") >= since) & (pl.col("id") % 2 == 0)).select("id").collect()
    assert sorted(found["id"]) == list(range(900, 1000, 2))
    assert frame.head(3).collect().height == 3
    with duckdb.connect() as connection:
        relation = part.duckdb(connection)
        assert relation.aggregate("count(*)").fetchall() == [(100,)]
        assert relation.aggregate("min(id)").fetchall() == [(900,)]


def test_condition_of_polars_limits_what_is_read() -> None:
    from oncelog.tables.bounds import ALL, Bounds, Range
    from oncelog.tables.lazy_frame import bounds_of

    time = datetime(2026, 1, 1, tzinfo=UTC)
    at = int(time.timestamp()) * 1_000_000
    offset, partition, stamp = (pl.col(each) for each in ("_offset", "_partition", "_timestamp"))
    for condition, wanted in (
        (offset > 5, Bounds(offsets=Range(6))),
        ((offset >= 5) & (partition == 1), Bounds(Range(1, 2), Range(5))),
        ((offset < 5) | (offset == 9), Bounds(offsets=Range(None, 10))),
        ((offset < 5) | (pl.col("a") == 9), ALL),
        ((offset < 5) & (pl.col("a") == 9), Bounds(offsets=Range(None, 5))),
        (pl.lit(3) < offset, Bounds(offsets=Range(4))),
        (stamp > time, Bounds(times=Range(at + 1))),
        (stamp.is_between(time, time + timedelta(seconds=1), closed="left"), Bounds(times=Range(at, at + 1_000_000))),
        (stamp.dt.date() == time.date(), ALL),
        (offset > pl.col("a"), ALL),
        (offset > 5.5, ALL),
        (partition.is_in([1, 2]), ALL),
    ):
        assert bounds_of(condition) == wanted, condition


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("selec 1", "syntax error"),
        ("insert into t values (1)", "must be a SELECT"),
        ("select 1; select 2", "give one SELECT"),
        ("pivot orders on country using count(*)", "name their values: PIVOT ... ON country IN"),
        ("from (pivot orders on country using count(*))", "name their values: PIVOT ... ON country IN"),
        ("select * from ordres", "ordres does not exist.*Topics with a similar name: .*orders"),
        ("select nothing from orders", "nothing"),
        ("select * from 'missing.parquet'", "missing.parquet"),
        ("select * from nowhere.x", "nowhere"),
        ("select 1/x from orders", "x"),
    ],
)
def test_wrong_queries(server: Server, admin: Admin, query: str, message: str) -> None:
    if "orders" not in set(admin.list_topics()):
        admin.create_topics("orders")
    with pytest.raises(errors.ConfigError, match=message):
        oncelog.sql(query, server.bootstrap)


def test_wrong_arguments(server: Server, admin: Admin, name: str, tmp_path: Path) -> None:
    topic = name
    admin.create_topics(topic)
    with pytest.raises(errors.ConfigError, match="it must be auto, json, avro, string, bytes, not 'yaml'"):
        oncelog.scan(topic, server.bootstrap, value_format="yaml")
    with pytest.raises(errors.ConfigError, match="has no JSON value yet; give the schema"):
        oncelog.scan(topic, server.bootstrap, value_format="json")
    with pytest.raises(errors.ConfigError, match="give the schema registry, or the schema"):
        oncelog.scan(topic, server.bootstrap, value_format="avro")
    with pytest.raises(errors.ConfigError, match="has no time zone"):
        oncelog.scan(topic, server.bootstrap, since=datetime(2026, 1, 1))
    with pytest.raises(errors.ConfigError, match="has no column 'x'; its columns are value, _key"):
        oncelog.scan(topic, server.bootstrap, columns=["x"])
    sqlite3.connect(tmp_path / "empty.db").close()
    (tmp_path / "empty.db").touch()
    with pytest.raises(errors.ConfigError, match="has no table 'x'"):
        oncelog.sql("select * from s.x", server.bootstrap, sqlite={"s": str(tmp_path / "empty.db")})
    for path, message in ((__file__, "file is not a database"), (tmp_path / "none.db", "unable to open")):
        with pytest.raises(errors.ConfigError, match=f"cannot read the SQLite file {path}: {message}"):
            oncelog.sql("select * from s.x", server.bootstrap, sqlite={"s": str(path)})
    with pytest.raises(errors.UnknownTopicError):
        oncelog.scan(topic + "-missing", server.bootstrap)


def written(server: Server, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    with Consumer(server.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([(topic, partition) for partition in consumer.partitions_for(topic)])
        ends = consumer.end_offsets(consumer.assignment())
        consumer.seek_to_beginning()
        found = []
        while any(consumer.position(*tp) < end for tp, end in ends.items()):
            found += [(record.key, record.value) for record in consumer.poll(1.0)]
    return found


def test_result_is_written_once(server: Server, admin: Admin, name: str) -> None:
    result = f"{name}-result"
    orders(server, admin, name)
    admin.create_topics(result)
    text = f'select country as _key, count(*) as n, 0.5 as half from "{name}" group by 1 order by 1'
    with oncelog.sql(text, server.bootstrap) as query:
        only_of_producers = {"compression.type": "lz4"}
        assert query.into(result, only_of_producers, once=name) == 3
        assert query.into(result, only_of_producers, once=name) is None
        wanted = [(b"de", b'{"n":333,"half":0.5}'), (b"fr", b'{"n":334,"half":0.5}'), (b"it", b'{"n":333,"half":0.5}')]
        assert written(server, result) == wanted
        assert query.into(result) == 3
        assert query.into(result, once=f"{name}-2") == 3
    assert written(server, result) == wanted * 3
    with oncelog.sql(f"select * from \"{name}\" where country = 'none'", server.bootstrap) as query:
        assert query.into(result, once=f"{name}-3") == 0
        assert query.into(result, once=f"{name}-3") is None


def test_empty_name_does_not_write_twice(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with oncelog.sql("select 1 as a", server.bootstrap) as query:
        with pytest.raises(errors.ConfigError, match="the name of `once` is empty"):
            query.into(name, once="")
        assert written(server, name) == []


def test_timeout_of_the_transaction_can_be_set(server: Server, admin: Admin, name: str) -> None:
    """A broker may allow less than the default. This one rejects what is more than its limit."""
    admin.create_topics(name)
    for config in ({"transaction.timeout.ms": 2**31 - 1}, {"transaction_timeout_ms": 2**31 - 1}):
        with (
            oncelog.sql("select 1 as a", server.bootstrap) as query,
            pytest.raises(errors.KafkaError, match=r"exceeds transaction\.max\.timeout\.ms"),
        ):
            query.into(name, config)
    with oncelog.sql("select 1 as a", server.bootstrap) as query:
        assert query.into(name, {"transaction.timeout.ms": 30_000}) == 1


def test_records_before_1970_are_found(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap})
    for time in (-5000, 5):
        producer.produce(name, b'{"a": 1}', timestamp=time)
    producer.flush()
    with oncelog.sql(f"select count(*) from \"{name}\" where _timestamp >= '1960-01-01'", server.bootstrap) as query:
        assert query.rows() == [(2,)]


def test_topics_whose_names_are_alike(server: Server, admin: Admin, name: str) -> None:
    upper = name.upper()
    admin.create_topics([name, upper, f"oncelog_{name}"])
    admin.create_topics([each for each in ("oncelog_0",) if each not in set(admin.list_topics())])
    with oncelog.sql("select * from oncelog_0", server.bootstrap) as query:
        assert query.rows() == []
    with pytest.raises(errors.ConfigError, match=f"does not distinguish the topics {upper} and {name}"):
        oncelog.sql(f'select * from "{name}", "{upper}"', server.bootstrap)


def test_values_of_sqlite_are_never_changed(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as shop:
        shop.execute("create table good (day date, at datetime, n int, twice int generated always as (n * 2), m int)")
        shop.execute("insert into good (day, at, n, m) values ('2026-01-02', '2026-01-02 03:04:05', 1.0, 3)")
        shop.execute("create table bad (n int)")
        shop.execute("insert into bad values (9.5)")
    shop.close()
    files = {"shop": str(path)}
    with oncelog.sql("select * from shop.good", server.bootstrap, sqlite=files) as query:
        assert query.rows() == [("2026-01-02", "2026-01-02 03:04:05", 1, 2, 3)]
    with (
        oncelog.sql("select * from shop.bad", server.bootstrap, sqlite=files) as query,
        pytest.raises(errors.ConfigError, match=r"^column n: not all values are int64"),
    ):
        query.rows()


def test_failed_query_writes_nothing(server: Server, admin: Admin, name: str) -> None:
    """The last record is bad, and more than a batch of good ones comes before it."""
    result = f"{name}-result"
    admin.create_topics([name, result])
    with Producer(server.bootstrap) as producer:
        for number in range(100_000):
            producer.send(name, b'{"a": %d}' % number)
        producer.send(name, b"bad")
    formats = {name: Wanted("json", pa.schema([("a", pa.int64())]))}
    with oncelog.sql(f'select a from "{name}"', server.bootstrap, formats=formats) as query:
        with pytest.raises(errors.BadRecordError, match=f"offset 100000 of {name}-0"):
            query.into(result, once=name)
        assert written(server, result) == []
    with oncelog.sql(f'select a from "{name}"', server.bootstrap, formats=formats, bad_records="null") as query:
        assert query.into(result, once=name) == 100_001
        assert query.into(result, once=name) is None
    assert len(written(server, result)) == 100_001


def test_topic_that_was_created_again_is_not_read(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        producer.send(name, b'{"a": 1}')
    with oncelog.sql(f'select a from "{name}"', server.bootstrap) as query:
        assert query.rows() == [(1,)]
        admin.delete_topics(name)
        wait_until(lambda: name not in admin.list_topics(), "the topic is gone")
        admin.create_topics(name)
        with Producer(server.bootstrap) as producer:
            producer.send(name, b'{"a": 2}')
        with pytest.raises(errors.UnknownTopicError, match="deleted and created again"):
            query.rows()
        assert query.rows() == [(2,)]  # after an error, the result is that of now


def test_topic_that_is_deleted_while_it_is_read(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap, batch_size=1) as producer:
        for number in range(1000):
            producer.send(name, b'{"a": %d}' % number)
    small = {"fetch_max_bytes": 1, "max_partition_fetch_bytes": 1}
    batches = oncelog.scan(name, server.bootstrap, **small).batches()
    assert next(batches).num_rows < 1000
    admin.delete_topics(name)
    with pytest.raises(errors.UnknownTopicError, match=f"^topic {name} was deleted while it was read"):
        list(batches)


def test_records_that_are_deleted_before_they_are_read(server: Server, admin: Admin, name: str) -> None:
    orders(server, admin, name)
    with oncelog.sql(f'select count(*) from "{name}" where _offset >= 7', server.bootstrap) as query:
        admin.delete_records({(name, 1): 30})
        message = (
            f"^records of {name}-1 were deleted before they were read: offsets 7 to 29 "
            r"\(OFFSET_OUT_OF_RANGE\)\. Read again to get the records that are left\.$"
        )
        with pytest.raises(errors.OffsetOutOfRangeError, match=message):
            query.rows()
        assert query.rows() == [(1000 - 7 - 30,)]


def test_results_follow_each_other(server: Server, admin: Admin, name: str) -> None:
    """A result that was not read to its end, an error, and an interrupt do not stop the next one."""
    orders(server, admin, name)
    with oncelog.sql(f'select id from "{name}"', server.bootstrap) as query:
        assert next(iter(query.reader())).num_rows > 0
        assert len(query.rows()) == 1000
        reader = query.reader()
        query.interrupt()
        with suppress(errors.OncelogError, pa.ArrowException):  # unless it is complete already
            reader.read_all()
        assert len(query.rows()) == 1000
    with oncelog.sql(
        f"select case when id = 999 then error('late') else id end from \"{name}\"", server.bootstrap
    ) as query:
        for _ in range(2):
            with pytest.raises(errors.ConfigError, match="late"):
                query.rows()


def test_what_a_query_reads_can_be_read_again(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        producer.send(name, b'{"a": 1, "b": 2}')
    with oncelog.sql(f'select a, b from "{name}"', server.bootstrap) as query:
        with Producer(server.bootstrap) as producer:
            producer.send(name, b'{"a": 3, "b": 4}')
        (scan,) = query.reads()
        assert scan.reader().read_all().to_pylist() == [{"a": 1, "b": 2}]
        assert scan.select(["b"]).reader().read_all().to_pylist() == [{"b": 2}]
