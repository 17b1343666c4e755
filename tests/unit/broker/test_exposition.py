"""Prometheus's text format: what its own parser reads is what was written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from oncelog.broker.metrics.catalog import catalog
from oncelog.broker.metrics.exposition import Kind, metric

LABELLED = metric("sizes", Kind.GAUGE, "Sizes in bytes,\nby \\ name.", "topic", "partition")


@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats() | st.integers(-(2**53), 2**53))
def test_parser_reads_what_was_written(name: str, value: float) -> None:
    (family,) = text_string_to_metric_families(LABELLED.head() + LABELLED.sample(value, (name, "0")))
    assert (family.name, family.type, family.documentation) == ("sizes", "gauge", "Sizes in bytes,\nby \\ name.")
    (sample,) = family.samples
    assert sample.labels == {"topic": name, "partition": "0"}
    assert sample.value == value or (math.isnan(sample.value) and math.isnan(value))


@pytest.mark.parametrize("name", ["", "1a", "a-b", "A", "a b"])
def test_invalid_name_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        metric(name, Kind.GAUGE, "x")


def test_counter_must_end_in_total() -> None:
    with pytest.raises(ValueError, match="must end in _total"):
        metric("requests", Kind.COUNTER, "x")


def test_no_name_is_in_the_catalog_twice() -> None:
    names = [each.name for each in catalog()]
    assert len(names) == len(set(names)) > 50
