"""The options `--add-scram` and `--add-scram-file`: users of SCRAM that a broker adds when it starts.

Source: Kafka's `ScramParser`, which reads `kafka-storage format --add-scram`.
"""

from __future__ import annotations

import os
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from oncelog.broker.process import ScramUser
from oncelog.cli.passwords import read_lines
from oncelog.protocol.kinds import SCRAM_MECHANISMS

Command = TypeVar("Command", bound=Callable[..., Any])

OPTION = "--add-scram"
FILE_OPTION = "--add-scram-file"
_KNOWN = frozenset({"name", "salt", "iterations", "password", "saltedpassword"})


def with_users(command: Command) -> Command:
    """Add both options to a command. `scram_users` reads their values."""
    command = click.option(
        *(FILE_OPTION, "scram_files"),
        multiple=True,
        metavar="FILE",
        help=f"Read users from this file, or from stdin (-): one line for each {OPTION}. Repeatable.",
    )(command)
    return click.option(
        *(OPTION, "add_scram"),
        multiple=True,
        metavar="MECHANISM=[...]",
        help=(
            "Add a user if it does not exist, such as SCRAM-SHA-512=[name=alice,password=...], as kafka-storage does. "
            "Also iterations=, salt=, saltedpassword=. Repeatable."
        ),
    )(command)


def scram_users(texts: Sequence[str], files: Sequence[str]) -> tuple[ScramUser, ...]:
    """Return the users that both options name. Raises UsageError, whose message shows no password.

    If a password is on this command line, replace this process by one with the same arguments except the passwords,
    because all users of the machine can read the arguments of a process.
    """
    if texts:
        _parse(OPTION, texts)
        _hide(texts)
    lines = {path: [line for line in read_lines(path) if line.strip()] for path in files}
    return _merged([*_parse(OPTION, texts), *(each for path in lines for each in _parse(path, lines[path]))])


def _hide(texts: Sequence[str]) -> None:
    """Run this command again, with the values of the option in a pipe. Do nothing if no argument has them."""
    arguments, shown, waiting = [], False, False
    for argument in sys.orig_argv[1:]:
        if waiting or argument == OPTION or argument.startswith(f"{OPTION}="):
            waiting, shown = argument == OPTION and not waiting, True
        else:
            arguments.append(argument)
    if not shown:
        return
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    content = "".join(f"{text}\n" for text in texts).encode()
    os.set_blocking(writer, False)  # nobody reads yet
    if os.write(writer, content) < len(content):
        raise click.UsageError(f"the values of {OPTION} are too long; put them into a file, with {FILE_OPTION}")
    os.close(writer)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execv(sys.executable, [sys.executable, *arguments, FILE_OPTION, f"/dev/fd/{reader}"])


def _merged(users: Sequence[ScramUser]) -> tuple[ScramUser, ...]:
    """Join the mechanisms of each user. Raises UsageError if one is given twice."""
    found: dict[str, ScramUser] = {}
    for each in users:
        before = found.setdefault(each.name, ScramUser(each.name, {}))
        if twice := before.credentials.keys() & each.credentials.keys():
            raise click.UsageError(f"{OPTION} names user {each.name!r} twice with {', '.join(twice)}")
        before.credentials.update(each.credentials)
    return tuple(found.values())


def _parse(source: str, texts: Sequence[str]) -> list[ScramUser]:
    found = []
    for number, text in enumerate(texts, 1):
        try:
            found.append(parse_user(text))
        except ValueError as error:
            where = source if source == OPTION else f"{source}, line {number}"
            raise click.UsageError(f"{where}: {error}") from None
    return found


def parse_user(text: str) -> ScramUser:
    """Return the user in `MECHANISM=[name=...,password=...]`. Raises ValueError, whose message shows no secret.

    As in Kafka, quotes around a value are removed, and a value has no comma.
    """
    mechanism, equals, rest = text.strip().partition("=")
    if not equals or not (rest.startswith("[") and rest.endswith("]")):
        raise ValueError("it must look like SCRAM-SHA-512=[name=alice,password=...]")
    if mechanism not in SCRAM_MECHANISMS:
        raise ValueError(f"the mechanism must be one of {', '.join(SCRAM_MECHANISMS)}")
    parts = [part.partition("=") for part in rest[1:-1].split(",")]
    if any(not equals for _, equals, _ in parts):
        raise ValueError("between the brackets, it must be KEY=VALUE,... (a value has no comma)")
    values = {key: _unquoted(value) for key, _, value in parts}
    if values.keys() - _KNOWN:  # they may be the rest of a password with a comma
        raise ValueError(f"only {', '.join(sorted(_KNOWN))} are allowed between the brackets (a value has no comma)")
    if not values.get("name"):
        raise ValueError("name is missing")
    return ScramUser(values["name"], {mechanism: _credential(mechanism, values)})


def _credential(mechanism: str, values: dict[str, str]) -> str:
    import hashlib

    from oncelog.net.sasl import MIN_ITERATIONS, MOST_ITERATIONS, SCRAM_HASHES, new_salt
    from oncelog.net.sasl_server import salted_credential, scram_credential

    iterations = values.get("iterations", str(MIN_ITERATIONS))
    if not iterations.isdecimal() or not MIN_ITERATIONS <= int(iterations[:9]) <= MOST_ITERATIONS:
        raise ValueError(f"iterations must be a number between {MIN_ITERATIONS} and {MOST_ITERATIONS}")
    salt = _decoded("salt", values["salt"]) if "salt" in values else new_salt()
    if not salt:
        raise ValueError("salt must not be empty")
    if "password" in values:
        if not values["password"]:
            raise ValueError("password must not be empty")
        return scram_credential(mechanism, values["password"], salt, int(iterations)).encode()
    if "saltedpassword" not in values:
        raise ValueError("password or saltedpassword is missing")
    if "salt" not in values:
        raise ValueError("saltedpassword needs salt")
    salted = _decoded("saltedpassword", values["saltedpassword"])
    if len(salted) != (size := hashlib.new(SCRAM_HASHES[mechanism]).digest_size):
        raise ValueError(f"saltedpassword must have {size} bytes for {mechanism}")
    return salted_credential(mechanism, salted, salt, int(iterations)).encode()


def _decoded(key: str, value: str) -> bytes:
    try:
        return b64decode(value, validate=True)
    except ValueError:
        raise ValueError(f"{key} must be base64") from None


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] == '"' else value
