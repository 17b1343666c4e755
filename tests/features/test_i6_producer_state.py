"""I6: what a partition remembers of each producer: its epoch and its last five batches."""

from support.wire import Wire, batch, code


def test_the_last_five_batches_are_remembered(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    offsets = [wire.produce(name, batch([b"a", b"b"], who, 2 * index)).base_offset for index in range(6)]
    assert offsets == [0, 2, 4, 6, 8, 10]
    for index in range(1, 6):
        answer = wire.produce(name, batch([b"a", b"b"], who, 2 * index))
        assert (answer.error_code, answer.base_offset) == (0, offsets[index])
    answer = wire.produce(name, batch([b"a", b"b"], who, 0))
    assert answer.error_code == code("OUT_OF_ORDER_SEQUENCE_NUMBER")
    assert wire.offset(name) == 12
