"""Patches that fail if the patched code has changed, and that count the calls of what they put in its place."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import pytest


class Patching(Protocol):
    """What a mutation needs from pytest's `MonkeyPatch`."""

    def setattr(self, target: object, name: str, value: object, /) -> None:
        """Replace an attribute."""


Patch = Callable[[Patching], None]


class StalePatchError(AssertionError):
    """A patch replaces something that no longer exists, or that is called in another way."""


class CheckedPatch:
    """Check each replacement against the original, and count its calls."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        """The number of calls by the name of the patched function."""
        self._patch = patch

    def setattr(self, target: object, name: str, value: object, /) -> None:
        """Replace a function, method or property. Raises StalePatchError."""
        check(target, name, value)
        self.calls[name] += 0
        if isinstance(value, property):
            assert value.fget is not None
            self._patch.setattr(target, name, property(self._counted(name, value.fget)))
        else:
            assert callable(value)
            self._patch.setattr(target, name, self._counted(name, value))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return function(*arguments, **options)

        return counted

    @property
    def unused(self) -> list[str]:
        """Return the names of the patched functions that were never called."""
        return sorted(name for name, calls in self.calls.items() if not calls)


class _Targets:
    def __init__(self) -> None:
        self.found: list[object] = []

    def setattr(self, target: object, name: str, value: object, /) -> None:
        del name, value
        self.found.append(target)


def can_be_patched(mutation: Patch) -> bool:
    """Return whether a mutation works in this build. A compiled module or class cannot be patched."""
    targets = _Targets()
    mutation(targets)
    assert targets.found, f"{mutation} patches nothing"
    names = [each.__name__ if isinstance(each, ModuleType) else str(vars(each)["__module__"]) for each in targets.found]
    return all(str(sys.modules[name].__file__).endswith(".py") for name in names)


def check(target: object, name: str, value: object) -> None:
    """Check that a replacement takes the arguments of the original. Raises StalePatchError."""
    where = f"{getattr(target, '__name__', target)}.{name}"
    try:
        original = inspect.getattr_static(target, name)
    except AttributeError as error:
        raise StalePatchError(f"{where} does not exist") from error
    if isinstance(original, property) or isinstance(value, property):
        if not (isinstance(original, property) and isinstance(value, property)):
            raise StalePatchError(f"{where}: only one of {original} and {value} is a property")
        return
    original = inspect.unwrap(original)
    if isinstance(original, staticmethod | classmethod):
        original = original.__func__
    assert callable(value)
    if inspect.iscoroutinefunction(original) != inspect.iscoroutinefunction(value):
        raise StalePatchError(f"{where}: only one of {original} and {value} is a coroutine function")
    least, most = _arguments(original, required=True), _arguments(original, required=False)
    for arguments, options in (least, most):
        try:
            inspect.signature(value).bind(*arguments, **options)
        except TypeError as error:
            raise StalePatchError(f"{where}{inspect.signature(original)} and its replacement: {error}") from error


def _arguments(function: Callable[..., Any], *, required: bool) -> tuple[list[None], dict[str, None]]:
    """Return the shortest or the longest list of arguments that a function takes."""
    arguments: list[None] = []
    options: dict[str, None] = {}
    for each in inspect.signature(function).parameters.values():
        if required and each.default is not each.empty:
            continue
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            arguments.append(None)
        elif each.kind is each.KEYWORD_ONLY:
            options[each.name] = None
    return arguments, options


def in_this_thread(really: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `instead` in the calling thread, and `really` in all others.

    A patch of a library's function concerns the whole process, and so also the threads that other tests have left.
    """
    own = threading.get_ident()

    def chosen(*arguments: Any, **options: Any) -> Any:
        return (instead if threading.get_ident() == own else really)(*arguments, **options)

    return chosen
