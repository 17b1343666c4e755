from uuid import UUID

from oncelog.broker.requests.fetch_sessions import (
    EVICTION_MS,
    MOST_IN_ALL_SESSIONS,
    MOST_IN_SESSION,
    FetchContext,
    FetchPosition,
    FetchSessions,
    Key,
)
from oncelog.protocol.errors import ErrorCode

NO_ID = UUID(int=0)


def position(partition: int, offset: int = 0) -> FetchPosition:
    return FetchPosition("t", NO_ID, partition, offset, 1000, -1)


def key(partition: int) -> Key:
    return "t", NO_ID, partition


class Cache:
    def __init__(self, slots: int = 2, most_partitions: int = MOST_IN_ALL_SESSIONS) -> None:
        ids = iter(range(1, 100))
        self.sessions = FetchSessions(slots, lambda: next(ids), most_partitions)
        self.now_ms = 0

    def begin(
        self,
        session_id: int,
        epoch: int,
        *positions: FetchPosition,
        forget: tuple[int, ...] = (),
        ids: bool = False,
        follower: bool = False,
    ) -> FetchContext:
        forgotten = [key(partition) for partition in forget]
        return self.sessions.begin(
            session_id, epoch, list(positions), forgotten, uses_topic_ids=ids, now_ms=self.now_ms, privileged=follower
        )


def partitions(context: FetchContext) -> list[int]:
    return [entry.partition for entry in context.positions]


def test_fetch_without_a_session_is_not_cached() -> None:
    cache = Cache()
    assert cache.begin(0, -1, position(0)).session_id == 0
    assert len(cache.sessions) == 0


def test_incremental_fetch_remembers_adds_moves_and_forgets() -> None:
    cache = Cache()
    assert cache.begin(0, 0, position(0), position(1)).session_id == 1
    context = cache.begin(1, 1, position(2), position(0, offset=7), forget=(1,))
    assert context.incremental
    assert partitions(context) == [0, 2]
    assert context.positions[0].fetch_offset == 7


def test_partition_that_returned_records_moves_to_the_end() -> None:
    cache = Cache()
    first = cache.begin(0, 0, position(0), position(1))
    first.served(first.positions[0])
    assert partitions(cache.begin(1, 1)) == [1, 0]


def test_wrong_epoch_unknown_session_and_changed_ids_have_different_errors() -> None:
    cache = Cache()
    cache.begin(0, 0, position(0))
    assert cache.begin(1, 2).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert cache.begin(9, 1).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.begin(1, 1, ids=True).error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_fetch_of_too_many_partitions_gets_no_session() -> None:
    cache = Cache()
    many = [position(number) for number in range(MOST_IN_SESSION + 1)]
    context = cache.begin(0, 0, *many)
    assert (context.error, context.session_id, len(context.positions)) == (ErrorCode.NONE, 0, len(many))
    assert len(cache.sessions) == 0
    assert cache.begin(0, 0, *many[1:]).session_id == 1


def test_session_that_grows_too_large_ends() -> None:
    for first, second in ((MOST_IN_SESSION, 1), (1, MOST_IN_SESSION + 1)):
        cache = Cache()
        many = [position(number) for number in range(first + second)]
        cache.begin(0, 0, *many[:first])
        assert cache.begin(1, 1, *many[first:]).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert len(cache.sessions) == 0


def test_session_that_forgets_too_many_partitions_ends() -> None:
    cache = Cache()
    cache.begin(0, 0, position(0))
    assert cache.begin(1, 1, forget=(1,) * MOST_IN_SESSION).error == ErrorCode.NONE
    assert cache.begin(1, 2, forget=(1,) * (MOST_IN_SESSION + 1)).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(cache.sessions) == 0


def test_large_session_may_name_all_its_partitions_again() -> None:
    cache = Cache()
    many = [position(number) for number in range(MOST_IN_SESSION)]
    cache.begin(0, 0, *many)
    assert len(cache.begin(1, 1, *many).positions) == MOST_IN_SESSION


def test_empty_session_and_final_epoch_end_it() -> None:
    cache = Cache()
    cache.begin(0, 0, position(0))
    assert cache.begin(1, 1, forget=(0,)).session_id == 0
    cache.begin(0, 0, position(0))
    cache.begin(2, -1)
    assert len(cache.sessions) == 0


def test_full_cache_evicts_only_long_unused_sessions() -> None:
    cache = Cache(slots=1)
    cache.begin(0, 0, position(0))
    assert cache.begin(0, 0, position(0)).session_id == 0
    cache.now_ms = EVICTION_MS + 1
    assert cache.begin(0, 0, position(0)).session_id == 2
    assert cache.begin(1, 1).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_follower_replaces_the_clients_session_that_was_used_least_recently() -> None:
    cache = Cache(slots=3)
    follower = cache.begin(0, 0, position(0), follower=True).session_id
    first, second = (cache.begin(0, 0, position(0)).session_id for _ in range(2))
    cache.begin(first, 1)
    other = cache.begin(0, 0, position(0), follower=True).session_id
    assert other
    assert cache.begin(second, 1).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.begin(0, 0, position(0)).session_id == 0
    third = cache.begin(0, 0, position(0), follower=True).session_id
    assert third
    assert cache.begin(first, 2).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.begin(0, 0, position(0), follower=True).session_id == 0
    assert [cache.begin(session, 1).error for session in (follower, other, third)] == [ErrorCode.NONE] * 3
    cache.now_ms += EVICTION_MS + 1
    assert cache.begin(0, 0, position(0)).session_id  # a follower that is gone keeps no slot


def test_epoch_wraps_to_one() -> None:
    cache = Cache()
    cache.begin(0, 0, position(0))
    session = cache.begin(1, 1).session
    assert session is not None
    session.epoch = 2**31 - 1
    cache.begin(1, 2**31 - 1)
    assert session.epoch == 1


def test_only_changed_partitions_are_returned() -> None:
    known = position(0)
    assert known.changed(0, 5, 0, False)
    assert not known.changed(0, 5, 0, False)
    assert known.changed(0, 5, 0, True)
    assert known.changed(0, 6, 0, False)
    assert known.changed(0, 6, 1, False)
    assert known.changed(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, False)
    assert known.changed(0, 6, 1, False)


def test_partition_dropped_while_a_fetch_waits_is_still_served() -> None:
    cache = Cache()
    first = cache.begin(0, 0, position(0), position(1))
    waiting = cache.begin(first.session_id, 1)
    cache.begin(first.session_id, 2, forget=(0,))
    waiting.served(waiting.positions[0])
    assert partitions(cache.begin(first.session_id, 3)) == [1]


def test_sessions_have_a_limited_number_of_partitions_together() -> None:
    cache = Cache(slots=100, most_partitions=10)
    many = [position(number) for number in range(6)]
    assert cache.begin(0, 0, *many).session_id == 1
    refused = cache.begin(0, 0, *many)
    assert (refused.session_id, len(refused.positions)) == (0, 6)
    assert cache.begin(0, 0, *many[:4]).session_id == 2
    assert cache.begin(2, 1, position(7)).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND  # it would grow
    assert cache.begin(1, 1, many[0], forget=(4, 5)).error == ErrorCode.NONE
    assert cache.begin(0, 0, *many).session_id == 3  # 4 + 6
    assert cache.begin(1, -1).error == ErrorCode.NONE
    assert cache.begin(0, 0, *many[:4], follower=True).session_id == 4
    assert cache.begin(0, 0, *many, follower=True).session_id == 5  # instead of session 3
    assert cache.begin(3, 1).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    cache.now_ms += EVICTION_MS + 1
    assert cache.begin(0, 0, *many, *(position(number) for number in range(6, 10))).session_id == 6
    assert len(cache.sessions) == 1
