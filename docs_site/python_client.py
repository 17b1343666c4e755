"""Generate the reference of the Python client from its signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator

import oncelog
from docs_site.markdown import code, docstring, summary, table
from oncelog import aio, formats, metrics, serialization
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.group_offsets import GroupMetadata, OffsetAndMetadata
from oncelog.client.producer.delivery import RecordFuture, RecordMetadata
from oncelog.client.producer.prepared import TransactionOutcome
from oncelog.client.producer.resumed import ResumedTransaction
from oncelog.client.producer.tables import TableFuture
from oncelog.client.types import ConsumerRecord
from oncelog.tables.query import Query
from oncelog.tables.scan import Scan

MAIN: tuple[type, ...] = (
    oncelog.Producer,
    oncelog.Transaction,
    oncelog.Consumer,
    oncelog.Admin,
    oncelog.PreparedTransaction,
    ResumedTransaction,
)
"""The classes that a program makes, or gets from `with`."""

VALUES: tuple[type, ...] = (
    RecordFuture,
    RecordMetadata,
    TableFuture,
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    TransactionOutcome,
    formats.Json,
    formats.Avro,
    serialization.SerializationContext,
    serialization.StringSerializer,
    serialization.StringDeserializer,
    serialization.JsonSerializer,
    serialization.JsonDeserializer,
    serialization.AvroSerializer,
    serialization.AvroDeserializer,
    serialization.SchemaRegistry,
)
"""What their methods take and return."""

OF_THE_PRODUCER = ("send", "send_table", "send_offsets", "prepare")
"""Methods that every transaction has from its producer."""

_INHERITED = {name for base in (object, tuple, int, str, BaseException) for name in dir(base)} | {"name", "value"}


def page() -> str:
    """Return the page."""
    parts = [
        "# Python client\n",
        "Every public class and method, with its docstring. The [guide](../python-client.md) shows how they work "
        "together, [client options](client-options.md) are the arguments of the constructors, and [errors](errors.md) "
        "are what the calls raise. What `metrics` returns is in [metrics](metrics.md).\n",
        "A partition is a pair `(topic, number)`. Timeouts are in seconds; options and timestamps are in "
        "milliseconds. `from oncelog import Producer` imports the class that blocks, `from oncelog.aio import "
        "Producer` the one for [asyncio](#asyncio).\n",
    ]
    for kind in (*MAIN, *admin_values(), *VALUES):
        parts += _class(kind)
    return "\n".join([*parts, *_sql(), *_asyncio(), *_spark(), *_testing()])


def methods(kind: type) -> list[str]:
    """Return the public methods and properties of a class, by name."""
    return sorted(name for name in dir(kind) if not name.startswith("_") and name not in _skipped(kind))


def _skipped(kind: type) -> set[str]:
    fields = set(getattr(kind, "_fields", ())) | set(getattr(kind, "__dataclass_fields__", ()))
    own = {name for base in kind.__mro__[:-1] if base.__module__.startswith("oncelog") for name in vars(base)}
    return fields | (_INHERITED - own) | set(getattr(kind, "__members__", ()))


def admin_values() -> list[type]:
    """Return the classes that methods of `Admin` take and return, by name."""
    found: dict[str, type] = {}
    waiting: list[object] = [getattr(oncelog.Admin, name) for name in methods(oncelog.Admin)]
    while waiting:
        for kind in _named(waiting.pop()):
            if kind.__name__ not in (*found, *metrics.__all__) and kind not in (*MAIN, *VALUES, ClusterClient):
                found[kind.__name__] = kind
                waiting.append(kind)
    return [found[name] for name in sorted(found)]


def _named(of: object) -> Iterator[type]:
    """Yield oncelog's classes in the annotations of a function or a class."""
    function = inspect.unwrap(of) if callable(of) and not isinstance(of, type) else of
    module = inspect.getmodule(function)
    for annotation in getattr(function, "__annotations__", {}).values():
        for word in re.findall(r"[A-Z]\w+", _written(annotation)):
            kind = getattr(module, word, None)
            if isinstance(kind, type) and kind.__module__.startswith("oncelog.") and kind.__doc__:
                yield kind


def _class(kind: type) -> Iterator[str]:
    yield f"## {kind.__name__} {{ #{kind.__name__} }}\n"
    if _is_value(kind):
        yield docstring(kind) + "\n"
        fields = list(_fields(kind))
        if fields:
            yield table(("field", "type"), fields)
    else:
        yield _signature(kind.__name__, kind)
        yield docstring(kind) + "\n"
    for name in methods(kind):
        yield from _method(kind.__name__, name, getattr(kind, name))
    if kind is oncelog.Transaction:
        listed = ", ".join(f"[`{name}`](#Producer.{name})" for name in OF_THE_PRODUCER)
        yield f"A transaction also has its producer's {listed}.\n"


def _is_value(kind: type) -> bool:
    """Return whether a class has fields or members, and no constructor that a program calls."""
    return any(hasattr(kind, name) for name in ("_fields", "__dataclass_fields__", "__members__")) or (
        kind in (RecordFuture, TableFuture, ResumedTransaction, oncelog.Transaction)
    )


def _fields(kind: type) -> Iterator[tuple[str, str]]:
    if hasattr(kind, "__members__"):
        yield from ((code(member.name), code(repr(member.value))) for member in kind)  # type: ignore[attr-defined]
        return
    for name in (*getattr(kind, "_fields", ()), *getattr(kind, "__dataclass_fields__", ())):
        if not name.startswith("_"):
            yield code(name), code(_written(kind.__annotations__.get(name, "")))


def _written(annotation: object) -> str:
    """Return an annotation as the source has it."""
    return annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else str(annotation)


def _method(owner: str, name: str, member: object) -> Iterator[str]:
    yield f"### {owner}.{name} {{ #{owner}.{name} }}\n"
    if callable(member):
        yield _signature(name, member)
    yield docstring(member) + "\n"


def _signature(name: str, of: typing.Any) -> str:
    """Return the signature of a callable as a block of Python, one parameter on a line if it is long."""
    signature = inspect.signature(of)
    shown = [str(each).replace("'", "") for each in signature.parameters.values() if each.name != "self"]
    kinds = [each.kind for each in signature.parameters.values() if each.name != "self"]
    if inspect.Parameter.VAR_POSITIONAL not in kinds and inspect.Parameter.KEYWORD_ONLY in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = str(signature.return_annotation).replace("'", "")
    end = "" if isinstance(of, type) or signature.return_annotation is inspect.Signature.empty else f" -> {result}"
    line = f"{name}({', '.join(shown)}){end}"
    if len(line) > 88:
        line = f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){end}"
    return f"```python\n{line}\n```\n"


def _sql() -> Iterator[str]:
    for function in (oncelog.sql, oncelog.scan):
        yield f"## {function.__name__} {{ #{function.__name__} }}\n"
        yield _signature(function.__name__, function)
        yield docstring(function) + "\n"
    for kind in (Query, Scan):
        yield f"## {kind.__name__} {{ #{kind.__name__} }}\n"
        yield docstring(kind) + "\n"
        for name in methods(kind):
            yield from _method(kind.__name__, name, getattr(kind, name))


def _asyncio() -> Iterator[str]:
    yield "## asyncio { #asyncio }\n"
    yield docstring(aio) + "\n"
    rows = []
    for name in ("Producer", "Transaction", "Consumer", "Admin"):
        kind, blocking = getattr(aio, name), getattr(oncelog, name)
        functions = [each for each in methods(kind) if inspect.isroutine(getattr(kind, each))]
        at_once = [each for each in functions if not inspect.iscoroutinefunction(getattr(kind, each))]
        missing = sorted(set(methods(blocking)) - set(methods(kind)))
        rows.append((f"`{name}`", _listed(at_once), _listed(missing)))
    yield "Await the methods that send requests. Call the others without `await`:\n"
    yield table(("class", "called without `await`", "missing"), rows)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _spark() -> Iterator[str]:
    from oncelog import spark

    yield "## oncelog.spark { #oncelog.spark }\n"
    yield docstring(spark) + "\n"
    for name in ("register", "cause"):
        yield from _method("oncelog.spark", name, getattr(spark, name))
    yield summary(spark.OncelogDataSource) + "\n"
    from oncelog.spark import functions

    yield "## oncelog.spark.functions { #oncelog.spark.functions }\n"
    yield docstring(functions) + "\n"
    for name in functions.__all__:
        yield from _method("oncelog.spark.functions", name, getattr(functions, name))


def _testing() -> Iterator[str]:
    from oncelog import testing

    yield "## oncelog.testing { #oncelog.testing }\n"
    yield docstring(testing) + "\n"
    yield "[Test your service](../testing.md) has a table of the fixtures.\n"
    for name in testing.__all__:
        member = getattr(testing, name)
        yield f"### oncelog.testing.{name} {{ #oncelog.testing.{name} }}\n"
        if not (isinstance(member, type) and issubclass(member, Exception)):
            yield _signature(name, member)
        yield docstring(member) + "\n"
        for each in methods(member) if isinstance(member, type) else ():
            of = getattr(member, each)
            yield f"#### {name}.{each} {{ #oncelog.testing.{name}.{each} }}\n"
            if callable(of):
                yield _signature(each, of)
            yield docstring(of) + "\n"
