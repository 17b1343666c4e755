"""Prometheus's text format, version 0.0.4: the lines of one metric.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/. Strings are escaped as it says, so that a name
cannot end its line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

T = TypeVar("T")

Lines = Generator[str | None, None, T]
"""Lines of the text. An empty one counts like any other, for work that makes none; None is work of a millisecond."""

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Kind(Enum):
    """The type of a metric. The value is its name in the text."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Metric(NamedTuple):
    """One metric: its name, its type, a sentence about it, and the names of its labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    def head(self) -> str:
        """Return the two lines before the samples."""
        text = self.help.replace("\\", r"\\").replace("\n", r"\n")
        return f"# HELP {self.name} {text}\n# TYPE {self.name} {self.kind.value}\n"

    def sample(self, value: float, values: Sequence[str] = (), labels: Sequence[str] | None = None) -> str:
        """Return the line of one sample. `values` are those of `labels`, by default those of the metric."""
        names = self.labels if labels is None else labels
        pairs = ",".join([f'{name}="{_escaped(text)}"' for name, text in zip(names, values, strict=True)])
        return f"{self.name}{{{pairs}}} {number(value)}\n" if pairs else f"{self.name} {number(value)}\n"


def metric(name: str, kind: Kind, text: str, *labels: str) -> Metric:
    """Return a metric. Raises ValueError if a name is not valid, or a counter does not end in `_total`."""
    for each in (name, *labels):
        if not _NAME.fullmatch(each):
            raise ValueError(f"{each!r} cannot be the name of a metric or a label")
    if kind is Kind.COUNTER and not name.endswith("_total"):
        raise ValueError(f"the name of the counter {name} must end in _total")
    return Metric(name, kind, text, labels)


def single(metric: Metric, value: float) -> Lines[None]:
    """Yield the lines of a metric that has one sample without labels."""
    yield metric.head()
    yield metric.sample(value, labels=())


def counted(metric: Metric, counts: Mapping[str, float]) -> Lines[None]:
    """Yield the lines of a metric with one label, in the order of its values."""
    yield metric.head()
    for label, count in sorted(counts.items()):
        yield metric.sample(count, (label,))


def number(value: float) -> str:
    """Return a number as Prometheus reads it."""
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)
