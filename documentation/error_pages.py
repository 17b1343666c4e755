"""Generate the reference of errors: the client's exceptions, and Kafka's error codes with their exceptions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from documentation.markdown import anchor, code, docstring, table, text
from oncelog import errors
from oncelog.protocol.errors import ErrorCode


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            "# Errors\n",
            "All exceptions of the client are in `oncelog.errors` and derive from [OncelogError](#OncelogError).\n",
            "## The hierarchy\n",
            "```text\n" + "\n".join(_tree(errors.OncelogError)) + "\n```\n",
            _rules() + "\n",
            "## Exceptions\n",
            *(_described(kind) for kind in exceptions()),
            "## Kafka's error codes { #codes }\n",
            "`KafkaError.code` is Kafka's code. Inside a transaction, every error is an "
            "[AbortableError](#AbortableError) or a [FatalError](#FatalError). In all other cases, it has the class in "
            "this table.\n",
            table(("code", "name", "meaning", "exception", "what to do"), _codes()),
        ]
    )


def exceptions() -> list[type[errors.OncelogError]]:
    """Return the public exceptions, each after its base class."""
    found: list[type[errors.OncelogError]] = []
    waiting: list[type[errors.OncelogError]] = [errors.OncelogError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += reversed(_public_subclasses(kind))
    return found


def _public_subclasses(kind: type[errors.OncelogError]) -> list[type[errors.OncelogError]]:
    return [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]


def _tree(kind: type[errors.OncelogError], before: str = "") -> Iterator[str]:
    yield kind.__name__
    below = _public_subclasses(kind)
    for number, each in enumerate(below):
        last = number == len(below) - 1
        lines = list(_tree(each))
        yield f"{'└── ' if last else '├── '}{lines[0]}"
        yield from (f"{'    ' if last else '│   '}{line}" for line in lines[1:])


def _rules() -> str:
    """Return the paragraph after the tree in the module's docstring, which says how classes depend on the place."""
    paragraphs = (inspect.getdoc(errors) or "").split("\n\n")
    return "\n\n".join(
        text(" ".join(each.split())) for each in paragraphs[2:] if not each.startswith((" ", "`CLASSES`"))
    )


def _described(kind: type[errors.OncelogError]) -> str:
    base = kind.__bases__[0].__name__
    parts = [f"### {kind.__name__} {{ #{kind.__name__} }}\n", docstring(kind) + "\n"]
    if issubclass(kind, errors.OncelogError) and kind is not errors.OncelogError:
        parts.append(f"A kind of [{base}](#{base}).\n")
    if issubclass(kind, errors.KafkaError) and "default_advice" in vars(kind):
        parts.append(f"What to do: {text(kind.default_advice)}\n")
    return "\n".join(parts)


def _codes() -> Iterator[tuple[str, ...]]:
    for each in sorted(ErrorCode):
        if each is ErrorCode.NONE:
            continue
        kind = type(errors.error_for(each))
        advice = errors.ADVICE.get(each, kind.default_advice)
        link = f"[{kind.__name__}](#{kind.__name__})"
        yield anchor(each.name) + str(each.value), code(each.name), text(each.text), link, text(advice)
