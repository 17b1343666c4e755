"""Generate the reference of errors: the client's exceptions, and Kafka's error codes with their exceptions."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator

from docs_site.markdown import anchor, code, docstring, table, text
from oncelog import errors
from oncelog.protocol.errors import ErrorCode


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            "# Errors\n",
            "All exceptions of the client are in `oncelog.errors` and derive from [OncelogError](#OncelogError).\n",
            "## The hierarchy\n",
            _hierarchy() + "\n",
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


def _hierarchy() -> str:
    """Return the tree in the docstring of `oncelog.errors` with the paragraphs on how a class depends on the place."""
    tree, *paragraphs = (inspect.getdoc(errors) or "").split("\n\n")[1:]
    rules = [text(" ".join(each.split())) for each in paragraphs if not each.startswith("`CLASSES`")]
    return "\n\n".join([f"```text\n{textwrap.dedent(tree)}\n```", *rules])


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
