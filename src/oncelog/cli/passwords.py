"""Read passwords from a prompt, a file or stdin, so that no command line shows them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

LONGEST = 64 * 1024
"""The most bytes that a file of passwords may have."""


def read_password(user: str, path: str | None) -> str:
    """Return the password of a user: from the file, from stdin if the path is "-", without a path from a prompt.

    The password is the first line. Raises UsageError if there is no terminal, and ClickException for an unusable file.
    """
    if path is not None:
        lines = read_lines(path)
        if len(lines) != 1 or not lines[0]:
            raise click.ClickException(f"{_shown(path)} must have one line, the password")
        return lines[0]
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("there is no terminal to ask for the password; give --password-file (- for stdin)")
    return str(click.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True))


def read_lines(path: str) -> list[str]:
    """Return the lines of a file with secrets, or of stdin if the path is "-". Raises ClickException."""
    try:
        if path == "-":
            content = sys.stdin.buffer.read(LONGEST + 1)
        else:
            with Path(path).open("rb") as file:
                content = file.read(LONGEST + 1)
        if len(content) > LONGEST:
            raise click.ClickException(f"{_shown(path)} has more than {LONGEST} bytes")
        return content.decode().splitlines()
    except OSError as error:
        raise click.ClickException(f"{_shown(path)}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise click.ClickException(f"{_shown(path)}: it is not UTF-8") from None


def _shown(path: str) -> str:
    return "stdin" if path == "-" else path
