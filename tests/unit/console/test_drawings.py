"""The drawings of the console are well-formed and bounded, whatever they show."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from oncelog.console import lag_chart
from oncelog.console.log_spans import Span
from oncelog.console.offset_line import Bracket, Line, Position, draw, draw_overview
from oncelog.console.transaction_states import Dot
from oncelog.console.transaction_states import draw as draw_states

OFFSETS = st.integers(0, 2**62)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"), max_size=60
)


def parse(drawing: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawing)


def line(begin: int, end: int, leo: int, spans: list[Span], names: list[str]) -> Line:
    return Line(
        name="topic-0",
        begin=begin,
        end=end,
        start=0,
        lso=leo // 2,
        hw=leo,
        leo=leo,
        read_to=leo,
        spans=spans,
        positions=[Position(name, leo // 3, "/group") for name in names],
        open=[Bracket(leo // 2, name, "/transaction", False) for name in names],
        target=lambda offset: f"/{offset}",
    )


@given(OFFSETS, st.integers(1, 30_000), OFFSETS, st.lists(NAMES, max_size=5))
def test_any_window_is_drawn(begin: int, span: int, leo: int, names: list[str]) -> None:
    states = ["plain", "committed", "aborted", "open", "commit marker", "ended"]
    some = [Span(begin + 3 * n, begin + 3 * n + 1, states[n % 6], n, 0, 2, 10, 0) for n in range(40)]
    for drawing in (draw, draw_overview):
        parse(drawing(line(begin, begin + span, leo, some, names)))


def test_many_small_spans_need_few_shapes() -> None:
    many = [Span(n, n, "plain" if n % 2 else "committed", n, 0, 1, 10, 0) for n in range(25_600)]
    assert draw(line(0, 25_600, 25_600, many, [])).count("<rect") < 2_000


@given(st.lists(st.tuples(NAMES, st.sampled_from(["Ongoing", "Empty", "Unknown"])), max_size=60))
def test_any_transactions_are_drawn(some: list[tuple[str, str]]) -> None:
    parse(draw_states([Dot(name, state, "/transaction", False) for name, state in some]))


@given(st.lists(st.tuples(OFFSETS, OFFSETS, OFFSETS), min_size=1, max_size=9))
def test_any_lag_is_drawn(points: list[tuple[int, int, int]]) -> None:
    parse(lag_chart.draw(sorted(points)))
