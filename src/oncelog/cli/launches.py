"""What each broker of `oncelog up` is started with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from oncelog.broker.config.sources import set_option
from oncelog.broker.process import METADATA_FILE, Launch, ScramUser, TopicSpec
from oncelog.cli.broker_settings import gather, of_broker, require_own_ports, require_way_between, with_address
from oncelog.cli.data_folder import LOG_DIR_PREFIX
from oncelog.cli.log_format import note
from oncelog.cli.secure import with_own_listener

LOST = "lost.log.dirs"


class SettingsOptions(NamedTuple):
    """The options of `oncelog up` that determine the brokers' settings."""

    brokers: int
    config_file: str | None
    assignments: Sequence[str]
    host: str | None
    port: int | None
    advertise: str | None
    metrics_port: int | None
    secure: bool

    def read(self) -> list[dict[str, str]]:
        """Read the file. Return the settings of each broker, without those that `Launches` chooses. Raises UsageError,
        ConfigError.
        """
        given = gather(self.config_file, self.assignments)
        given = with_own_listener(given) if self.secure else given
        settings = with_address(given, host=self.host, port=self.port, advertise=self.advertise)
        if self.metrics_port is not None:
            settings["metrics.port"] = str(self.metrics_port)
        each = [of_broker(settings, number) for number in range(1, self.brokers + 1)]
        require_own_ports(each)
        require_way_between(settings, self.brokers)
        return each

    def own_log_dirs(self) -> str | None:
        """Return the `log.dirs` of `--set`, if any. Raises UsageError for settings that `oncelog up` itself chooses."""
        assigned = dict(set_option(text) for text in self.assignments)
        for key in ("node.id", "broker.id"):
            if key in assigned:
                raise click.UsageError(
                    f"--set {key} has no effect: `oncelog up` numbers its brokers from 1. To run one broker with "
                    "another id, use `oncelog broker --config FILE`"
                )
        for key in ("log.dirs", "log.dir"):
            if key in assigned and self.brokers > 1:
                raise click.UsageError(f"{key} cannot be set for several brokers; use --data")
        return assigned.get("log.dirs")


class Launches(NamedTuple):
    """How brokers are started in a data directory.

    `log_dirs` is that of the command line: a file may describe another installation. `chosen` has further settings of
    all brokers, and `users` those to add.
    """

    folder: str
    brokers: int
    topics: tuple[TopicSpec, ...]
    log_dirs: str | None
    chosen: Mapping[str, str]
    users: tuple[ScramUser, ...]

    def of(self, number: int, settings: Mapping[str, str]) -> Launch:
        """Return the parameters of one broker. Print a line if a setting is ignored."""
        own = {"node.id": str(number), "log.dirs": self.log_dirs or self._log_dir(number)}
        for key in ("log.dirs", "log.dir"):
            if number == 1 and key in settings and settings[key] != self.log_dirs:
                instead = f"ignored, because `oncelog up` keeps its data in {self.folder}"
                note(f"{key}={settings[key]} is {instead}; to change that, use --data or --set log.dirs=...")
        kept = {key: value for key, value in settings.items() if key not in ("log.dir", "broker.id")}
        if self.brokers > 1 and LOST in kept:  # the others are unknown until they have started once
            others = [self._log_dir(each) for each in range(1, self.brokers + 1) if each != number]
            if lost := [path for path in paths_in(kept.pop(LOST)) if path not in others]:
                own[LOST] = ",".join(lost)
        metadata = os.path.join(self.folder, METADATA_FILE)
        exists = self.brokers > 1 and os.path.exists(metadata)
        return Launch(
            {**kept, **self.chosen, **own},
            metadata,
            self.topics,
            brokers=self.brokers,
            cluster_exists=exists,
            users=self.users,
        )

    def _log_dir(self, number: int) -> str:
        return os.path.join(self.folder, f"{LOG_DIR_PREFIX}{number}")


def paths_in(setting: str) -> list[str]:
    """Return the absolute paths in a setting that names directories."""
    return [os.path.abspath(path.strip()) for path in setting.split(",") if path.strip()]
