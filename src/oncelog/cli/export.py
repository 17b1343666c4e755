"""`oncelog export`: prepare log directories for Apache Kafka."""

from __future__ import annotations

import contextlib
import logging
import os
import time

import click

from oncelog.broker.config.settings import load
from oncelog.broker.folder_locks import FolderLock, StartError, check_apart
from oncelog.broker.process import METADATA_FILE
from oncelog.cli.broker_settings import gather, with_settings
from oncelog.cli.data_folder import DEFAULT_DATA
from oncelog.cli.lazy import examples


@click.command(epilog=examples("oncelog export --data .oncelog"))
@click.option(
    "--data", type=click.Path(file_okay=False), help=f"Data directory of `oncelog up`. Default: ./{DEFAULT_DATA}."
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False),
    help="The server.properties file of `oncelog broker`.",
)
@with_settings
def export(data: str | None, config_file: str | None, assignments: tuple[str, ...]) -> None:
    """Prepare the data of a stopped broker for Apache Kafka 4.3.

    The command writes bootstrap.checkpoint to the log directory. The partitions' files are not changed. It prints the
    settings log.dirs, node.id and controller.quorum.voters with which Kafka must be started. Add your listeners.
    """
    from oncelog.broker.metadata.export_kafka import export as write
    from oncelog.broker.storage.data_directory import DataDirectory
    from oncelog.cluster.store import UnavailableError
    from oncelog.cluster.store_sqlite import SqliteStore
    from oncelog.log.disk import OsDisk

    folder = os.path.abspath(data or DEFAULT_DATA)
    settings = gather(config_file, assignments)
    if config_file is None:
        settings = {"log.dirs": os.path.join(folder, "broker-1"), **settings}
    config = load(settings)
    metadata = os.path.join(config.log_dirs[0] if config_file and data is None else folder, METADATA_FILE)
    if not os.path.exists(metadata):
        raise click.ClickException(f"{metadata} does not exist; name the data directory with --data")
    for path in config.log_dirs:
        if not os.path.isdir(path):
            raise click.ClickException(f"log directory {path} does not exist; name it with --set log.dirs=...")
    logger = logging.getLogger("oncelog.export")
    directories = [
        DataDirectory(OsDisk(), path, config.node_id, logger, lambda _directory, _error: None)
        for path in config.log_dirs
    ]
    with contextlib.ExitStack() as stack:
        stack.callback(os.umask, os.umask(0o077))  # settings of listeners may be passwords
        try:
            check_apart(config.log_dirs)
            # The supervisor locks the directory of the metadata, even while it restarts its broker.
            for path in sorted({os.path.realpath(path) for path in (*config.log_dirs, os.path.dirname(metadata))}):
                stack.callback(FolderLock(path).release)
        except StartError as error:
            raise click.ClickException(str(error)) from error
        try:
            store = SqliteStore(metadata)
        except UnavailableError as error:
            raise click.ClickException(str(error)) from error
        stack.callback(store.close)
        done = write(store, directories, time.time_ns() // 1_000_000)
    click.echo(f"wrote {done.path} with {done.topics} topics and {done.settings} dynamic broker settings")
    if done.acls:
        click.echo(f"it has {done.acls} ACLs, which need authorizer.class.name in Kafka's settings")
    if done.users:
        click.echo(f"it has {done.users} passwords of SCRAM users")
    if done.tokens:
        click.echo(f"it has {done.tokens} delegation tokens, which need the same delegation.token.secret.key in Kafka")
    for path in done.set_aside:
        click.echo(f"moved the former metadata log to {path}")
    click.echo("start Apache Kafka 4.3 (process.roles=broker,controller) with:")
    # A dynamic quorum (KIP-853) needs the voters in a metadata log. Without one, no leader would be elected.
    click.echo(f"controller.quorum.voters={config.node_id}@HOST:PORT")
    click.echo(f"node.id={config.node_id}\nlog.dirs={','.join(os.path.abspath(path) for path in config.log_dirs)}")
