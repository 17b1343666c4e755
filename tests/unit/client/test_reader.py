"""What a poll gives when a part of what was fetched is damaged."""

from __future__ import annotations

import asyncio

import pytest

from oncelog import errors
from oncelog.client.fetcher import Fetched
from oncelog.client.options import consumer_options
from oncelog.client.reader import Reader
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.protocol.records import Record, build_batch


def waiting(reader: Reader, partition: int, data: bytes) -> None:
    """As if this had been fetched for a partition."""
    tp = ("t", partition)
    state = reader.states[tp]
    state.seek(0)
    fetched = Fetched(tp, PartitionData(records=data), 0, committed_only=False, check_crcs=True)
    state.buffered.append(fetched)
    state.position = fetched.end
    reader.arrived(tp)


@pytest.mark.parametrize("as_tables", [False, True])
def test_damage_in_one_partition_costs_the_others_nothing(as_tables: bool) -> None:
    async def body() -> None:
        from oncelog.client.tables import decode

        reader = Reader(consumer_options(None, {"bootstrap_servers": "nobody:1"}), asyncio.get_running_loop())
        reader.assign([("t", 0), ("t", 1)])
        good = bytes(build_batch([Record(0, 1_000, None, b"good")]))
        waiting(reader, 0, good)
        waiting(reader, 1, good[:-1] + b"\xff")

        async def values() -> list[bytes | None]:
            if not as_tables:
                return [record.value for record in await reader.poll(0)]
            found: list[bytes | None] = decode(reader, await reader.poll_raw(0), include_headers=False)[
                "value"
            ].to_pylist()
            return found

        assert await values() == [b"good"]
        assert reader.commits.consumed() == {("t", 0): 1, ("t", 1): 0}
        if as_tables:  # is fetched again
            waiting(reader, 1, good[:-1] + b"\xff")
        with pytest.raises(errors.KafkaError, match="t-1"):
            await values()
        assert reader.commits.consumed() == {("t", 0): 1, ("t", 1): 0}
        await reader.close()

    asyncio.run(body())
