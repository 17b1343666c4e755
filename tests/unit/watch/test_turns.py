"""Which keys a turn reads, and when lists are read again."""

from __future__ import annotations

from oncelog.watch.turns import chunks, pick, seconds_until_next_list


def test_each_key_is_read_however_many_there_are() -> None:
    keys = list(range(1000))
    read_at: dict[int, float] = {}
    busy = set(range(0, 1000, 7))
    for turn in range(20):
        chosen = pick(keys, read_at.get, busy.__contains__, 100)
        assert len(chosen) == len(set(chosen)) == 100
        assert sum(key in busy for key in chosen) >= 50
        read_at.update((key, float(turn)) for key in chosen)
    assert len(read_at) == 1000
    assert min(read_at[key] for key in busy) >= 16, "the busy ones come again soon"


def test_few_keys_are_all_read() -> None:
    assert pick([3, 1, 2], lambda _: None, lambda _: False, 3) == [3, 1, 2]
    assert pick([], lambda _: None, lambda _: True, 3) == []


def test_places_that_no_urgent_key_needs_go_to_others() -> None:
    assert sorted(pick(range(10), float, lambda key: key == 9, 4)) == [0, 1, 2, 9]


def test_long_lists_are_read_less_often() -> None:
    assert seconds_until_next_list(500) == 1
    assert seconds_until_next_list(100_000) == 200


def test_chunks() -> None:
    assert chunks(range(5), 2) == [[0, 1], [2, 3], [4]]
