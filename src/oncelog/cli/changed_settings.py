"""Read the settings of `oncelog up` again when a broker restarts, if their file has changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import click

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.folder_locks import StartError
from oncelog.broker.process import Launch
from oncelog.net.properties import parse_properties

Read = Callable[[int], Launch]
"""Read the settings of a broker. Raises ClickException, ConfigError, OSError, UnicodeError."""


class ChangedSettings:
    """The file of the settings, and which version of it each broker uses."""

    def __init__(self, path: str | None) -> None:
        """`path` is the file, or None if there is none. Call this before the settings are read first."""
        self._path = path
        self._first = self._stamp()
        self._used: dict[int, object] = {}
        self.read: Read | None = None

    def _stamp(self) -> object:
        if self._path is None:
            return None
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _check_content(self) -> None:
        """Raise ConfigError if the file is empty: an editor may be writing it, and all defaults are not secure."""
        assert self._path is not None
        with open(self._path, encoding="utf-8") as file:
            if not parse_properties(file.read()):
                raise ConfigError("it has no settings")

    def next_settings(
        self, broker: int, accept: Callable[[Launch], Launch], say: Callable[[str], None]
    ) -> Mapping[str, str] | None:
        """Return the changed settings of a broker that starts again. None: they are the same, or cannot be used.

        `accept` prepares the launch, and raises StartError or ConfigError if it is unusable.
        """
        stamp = self._stamp()
        if self.read is None or stamp is None or stamp == self._used.get(broker, self._first):
            return None
        try:
            self._check_content()
            launch = accept(self.read(broker))
        except (click.ClickException, ConfigError, StartError, OSError, UnicodeError) as error:
            text = error.format_message() if isinstance(error, click.ClickException) else str(error)
            say(f"broker {broker} keeps its previous settings, because {self._path} cannot be used: {text}")
            return None
        self._used[broker] = stamp
        say(f"broker {broker} starts with the changed settings in {self._path}")
        return launch.settings
