"""Run one broker in a process: lock its log directories, write the pid file, run the event loop, handle signals, exit.

`oncelog up` runs this module as `python -m oncelog.broker.process`, with a `Launch` as JSON in its only argument;
`oncelog broker` calls `run`. The exit status is 0 after a clean stop. If the broker cannot start or continue, the
status is `FAILED` or `NO_LOG_DIRECTORY`, and one sentence is printed to stderr.

The module imports the broker's code only when it runs one. The supervisor uses this module as well, and both must start
quickly.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.listeners import ListenerConfig
from oncelog.broker.config.settings import BrokerConfig, load
from oncelog.broker.folder_locks import StartError, UnusableFolderError, locked
from oncelog.broker.json_lines import own_line, wants_json
from oncelog.broker.log_lines import STDERR
from oncelog.broker.resources import allow_many_files, descriptor_limit, limit_garbage_collection, share_descriptors
from oncelog.log.disk import full_disk, is_full
from oncelog.protocol.addresses import bracketed

if TYPE_CHECKING:
    import asyncio
    import logging

    from oncelog.broker.broker import Broker
    from oncelog.broker.vitals import Listener
    from oncelog.cluster.image import MetadataImage

FAILED = 1
"""Exit status: the broker cannot start."""
NO_LOG_DIRECTORY = 3
"""Exit status: the broker cannot use any of its log directories, or the one with the metadata has failed."""

PID_FILE = "broker.pid"
TRACE_VARIABLE = "ONCELOG_TRACE"
"""If this variable is not empty, a start error is shown with its traceback."""
METADATA_FILE = "metadata.sqlite"
LOCK_WAIT_S = 10.0
"""How long a supervised broker waits until its predecessor has closed its logs and exited."""
JOIN_WAIT_S = 60.0
"""How long a broker of a new cluster waits for the other brokers that `oncelog up` starts."""
SHORT_JOIN_WAIT_S = 5.0
"""The same if the cluster exists. One of its brokers may be unable to start, and the others have copies."""
JOIN_POLL_S = 0.02
LAST_LINES_S = 1.0
"""How long a process waits until its lines are written to stderr: at its end, and before others say that it runs."""
TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP)
"""A terminal sends these to all processes that it runs."""
STOP_SIGNALS = (signal.SIGTERM, *TERMINAL_SIGNALS)


class TopicSpec(msgspec.Struct, frozen=True):
    """A topic that the broker creates at its start if it does not exist."""

    name: str
    partitions: int = 1
    replication_factor: int = 1


class ScramUser(msgspec.Struct, frozen=True):
    """A user that the broker adds at its start if no user has the name."""

    name: str
    credentials: dict[str, str]
    """What the broker stores for each mechanism (`ScramCredential.encode`). It has no password."""

    def __repr__(self) -> str:
        return f"ScramUser(name={self.name!r}, mechanisms={sorted(self.credentials)})"


class Launch(msgspec.Struct, frozen=True):
    """The parameters of a broker process. Its `repr` shows only the names of settings, because some are passwords."""

    settings: dict[str, str]
    """Broker settings by Kafka's keys."""
    metadata: str = ""
    """The path of the cluster's SQLite file. By default, it is `METADATA_FILE` in the first log directory."""
    topics: tuple[TopicSpec, ...] = ()
    """The broker is ready when these topics exist."""
    users: tuple[ScramUser, ...] = ()
    """The broker is ready when these users exist."""
    brokers: int = 1
    """The broker is ready when this many brokers are registered.

    If the cluster exists, it waits at most `SHORT_JOIN_WAIT_S` for them.
    """
    cluster_exists: bool = False
    """Whether `oncelog up` starts several brokers whose cluster exists already."""
    quiet: bool = False
    """Whether not to print why the broker cannot run, because earlier processes of `oncelog up` have printed it."""
    supervisor_fd: int = -1
    """A socket to the supervisor, or -1. The broker sends `Ready` to it.

    If the other end is closed, the supervisor stops all brokers, or has died, so the broker stops without handing over.
    """
    reports: bool = False
    """Whether to send `service_manager.READY_LINE` to the supervisor, when the broker is ready as `/ready` says."""
    beat_s: float = 0.0
    """Then send `service_manager.ALIVE_LINE` at this interval in seconds, 0: never."""

    def __repr__(self) -> str:
        return f"Launch(settings={sorted(self.settings)}, metadata={self.metadata!r})"


class Ready(msgspec.Struct, frozen=True):
    """The message of a broker that accepts requests."""

    host: str
    port: int
    advertised: str
    """The host:port that clients of the first listener must use."""


class DiskFailureError(Exception):
    """All log directories have failed, or the one with the metadata. The message is one sentence."""


def stop_signals() -> list[signal.Signals]:
    """Return the signals to handle: without SIGHUP if this process inherited that it is ignored, as under `nohup`."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in STOP_SIGNALS if not (ignored and number == signal.SIGHUP)]


def say(line: str, *, level: str = "INFO", broker: int | None = None) -> None:
    """Print a line on stderr with one write, because other processes write there, too. As JSON, if that is wanted.

    A full disk or a closed pipe loses the line, but does not end the process. The caller waits for no reader.
    """
    STDERR.write(f"{own_line(line, os.environ, level=level, broker=broker)}\n")


def finish_output() -> None:
    """Write the rest of stderr, or discard it if it cannot be written. Otherwise, Python would end with status 120."""
    STDERR.drain(LAST_LINES_S)
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def run(launch: Launch) -> int:
    """Run a broker until a signal or its supervisor stops it, or it fails. Return the exit status."""
    allow_many_files()
    try:
        return _run_locked(launch)
    finally:
        STDERR.drain(LAST_LINES_S)


def _run_locked(launch: Launch) -> int:
    try:
        config = _with_host_names(load(launch.settings))
        log = _start_logging(config.node_id)
        for warning in config.warnings:
            log.warning("%s", warning)
        wait_s = LOCK_WAIT_S if launch.supervisor_fd >= 0 else 0.0
        with locked(config.log_dirs, wait_s, log, _missing(config, launch.metadata)) as usable:
            pid_file = os.path.join(usable[0], PID_FILE)
            try:
                _write_pid(pid_file)
                _run_loop(_run_until_stopped(config, launch))
            finally:
                with contextlib.suppress(OSError):  # its disk may have failed
                    os.unlink(pid_file)
    except (ConfigError, StartError, DiskFailureError) as error:
        if not launch.quiet:
            say(f"oncelog: {error}", level="ERROR")
        return NO_LOG_DIRECTORY if isinstance(error, (DiskFailureError, UnusableFolderError)) else FAILED
    return 0


def _missing(config: BrokerConfig, metadata: str) -> dict[str, str]:
    """Return the missing log directories that had logs, with the reason why they must not be created.

    In a new, empty directory, a user would not see that the logs are gone, and `mv` would put them into it.
    """
    metadata = metadata or os.path.join(config.log_dirs[0], METADATA_FILE)
    if all(map(os.path.lexists, config.log_dirs)) or not os.path.exists(metadata):
        return {}
    from oncelog.broker.storage import log_dir_registry
    from oncelog.cluster.store import StoreError
    from oncelog.cluster.store_sqlite import SqliteStore

    own = [os.path.abspath(path) for path in config.log_dirs]
    lost = [os.path.abspath(path) for path in config.lost_log_dirs]
    former: dict[str, log_dir_registry.FormerDirectory] = {}
    # The broker reports the errors.
    with contextlib.suppress(StoreError, OSError), contextlib.closing(SqliteStore(metadata)) as store:
        former = log_dir_registry.kept(store, config.node_id, own, lost)
    return {
        given: former[path].without_logs(path, exists=False)
        for given, path in zip(config.log_dirs, own, strict=True)
        if path in former and not os.path.lexists(path)
    }


def _run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as `asyncio.run` does, on uvloop if it is installed."""
    import asyncio

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


async def _run_until_stopped(config: BrokerConfig, launch: Launch) -> None:
    import asyncio

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    received: set[int] = set()

    def signalled(number: int) -> None:
        received.add(number)
        stop.set()

    for number in stop_signals():
        loop.add_signal_handler(number, signalled, number)
    supervisor = _supervisor(launch.supervisor_fd)
    if supervisor is not None:
        loop.add_reader(supervisor.fileno(), stop.set)
    listener, beat_s = _listener(launch, supervisor)
    async with _started(config, launch, stop) as broker:
        limit_garbage_collection()
        first = config.client_listeners[0]
        endpoint = broker.endpoint(first.name)
        ready = Ready(first.host, broker.port, f"{bracketed(endpoint.host)}:{endpoint.port}")
        if not stop.is_set():
            say(f"[KafkaServer id={config.node_id}] started", broker=config.node_id)
            await asyncio.to_thread(STDERR.drain, LAST_LINES_S)  # before `oncelog up` prints the address
            if supervisor is not None:
                supervisor.sendall(msgspec.json.encode(ready) + b"\n")
        broker.failed.add_done_callback(lambda _: stop.set())
        with _reporting(broker, listener, beat_s, ready.advertised):
            await stop.wait()
        together = False
        if supervisor is not None:
            loop.remove_reader(supervisor.fileno())
            closed = select.select([supervisor], [], [], 0)[0]  # the supervisor never sends anything
            together = bool(closed) or not received.isdisjoint(TERMINAL_SIGNALS)
        await broker.stop(together=together)
        if broker.failed.done():
            raise DiskFailureError(f"stopped broker {config.node_id}: {broker.failed.result()}")


def _listener(launch: Launch, supervisor: socket.socket | None) -> tuple[Listener | None, float]:
    """Return what wants to know how the broker is, and the seconds between two signs of life, 0 for none."""
    import logging

    from oncelog.broker.service_manager import ServiceManager
    from oncelog.broker.vitals import SupervisorLink

    if supervisor is not None:
        return (SupervisorLink(supervisor), launch.beat_s) if launch.reports else (None, 0.0)
    manager = ServiceManager.from_environment(os.environ, os.getpid(), logging.getLogger("oncelog.process"))
    if manager is None:
        return None, 0.0
    manager.status("starting")
    return manager, manager.watchdog_s / 2


@contextlib.contextmanager
def _reporting(broker: Broker, listener: Listener | None, beat_s: float, address: str) -> Iterator[None]:
    """Report to the listener, if there is one, how the broker is while the body runs, and then that it stops."""
    import asyncio

    from oncelog.broker.vitals import report

    if listener is None:
        yield
        return
    reports = asyncio.ensure_future(report(broker.health().missing, listener, beat_s, address))
    try:
        yield
    finally:
        reports.cancel()
        listener.stopping("stopping: closing connections and logs")


@contextlib.asynccontextmanager
async def _started(config: BrokerConfig, launch: Launch, stop: asyncio.Event) -> AsyncIterator[Broker]:
    """Yield a broker that accepts requests. The body must stop it. Raises StartError or DiskFailureError.

    If `stop` is set, do not wait for other brokers.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from oncelog.broker.broker import Broker
    from oncelog.broker.workers import worker_threads
    from oncelog.cluster.store_sqlite import SqliteStore
    from oncelog.log.disk import OsDisk
    from oncelog.protocol.errors import ErrorCode, ProtocolError

    pool = ThreadPoolExecutor(worker_threads(len(config.log_dirs)), "oncelog-worker")
    asyncio.get_running_loop().set_default_executor(pool)
    with contextlib.ExitStack() as stack:
        try:
            home = None if launch.metadata else config.log_dirs[0]
            store = SqliteStore(launch.metadata or os.path.join(config.log_dirs[0], METADATA_FILE))
            stack.callback(store.close)
            renewals = ThreadPoolExecutor(1, "renewals")
            stack.callback(renewals.shutdown, wait=False)
            open_files, clients = share_descriptors(descriptor_limit())
            broker = Broker(
                config,
                disk=OsDisk(open_files),
                store=store,
                now_ms=_now_ms,
                busy=time.perf_counter,
                offload_renewal=partial(asyncio.get_running_loop().run_in_executor, renewals),
                metadata_dir=home,
                most_clients=clients,
                boot_id=_boot_id(),
            )
            await broker.start(lambda: _join(broker, launch, stop))
        except Exception as error:
            if os.environ.get(TRACE_VARIABLE):
                raise
            reason = _describe(error)
            if is_full(error):
                reason = full_disk([*config.log_dirs, *filter(None, [os.path.dirname(launch.metadata)])])
            message = f"cannot start broker {config.node_id}: {reason}"
            if isinstance(error, ProtocolError) and error.code == ErrorCode.KAFKA_STORAGE_ERROR:
                raise DiskFailureError(message) from error
            raise StartError(message) from error
        yield broker


async def _join(broker: Broker, launch: Launch, stop: asyncio.Event) -> None:
    """Wait until this broker knows the brokers, topics and users of the launch, or until `stop` is set.

    The running broker with the highest id creates missing topics and users. Raises StartError, ProtocolError,
    StoreError.
    """
    import asyncio

    async def wait(condition: Callable[[MetadataImage], bool], wait_s: float) -> bool:
        deadline = time.monotonic() + wait_s
        while not (condition(broker.metadata.image) or stop.is_set()):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(JOIN_POLL_S)
            await broker.loader.catch_up()
        return True

    wait_s = SHORT_JOIN_WAIT_S if launch.cluster_exists else JOIN_WAIT_S
    complete = await wait(lambda image: len(image.brokers) >= launch.brokers, wait_s)
    if not complete and not launch.cluster_exists:
        running = len(broker.metadata.image.brokers)
        raise StartError(
            f"only {running} of {launch.brokers} brokers run after {wait_s:g} s. See the messages of the others"
        )
    if broker.node_id == max(broker.metadata.image.brokers, default=broker.node_id) and not stop.is_set():
        await _create_topics(broker, launch.topics)
        await _add_users(broker, launch.users)
    users = {user.name for user in launch.users}
    if not await wait(lambda image: users <= image.user_configs.keys(), JOIN_WAIT_S):
        missing = ", ".join(sorted(users - broker.metadata.image.user_configs.keys()))
        raise StartError(f"after {JOIN_WAIT_S:g} s, no other broker has added these users: {missing}")
    names = {topic.name for topic in launch.topics}
    if not await wait(lambda image: names <= image.topics_by_name.keys(), JOIN_WAIT_S):
        missing = ", ".join(sorted(names - broker.metadata.image.topics_by_name.keys()))
        raise StartError(f"after {JOIN_WAIT_S:g} s, no other broker has created these topics: {missing}")


async def _create_topics(broker: Broker, topics: Sequence[TopicSpec]) -> None:
    """Create the topics that do not exist. Raises StartError, StoreError."""
    from oncelog.protocol.errors import ErrorCode, ProtocolError

    for topic in topics:
        if broker.metadata.image.topic(topic.name) is None:
            collides = broker.metadata.image.colliding(topic.name)
            if collides is not None:
                raise StartError(
                    f"cannot create topic {topic.name}: it collides with {collides}, because names must differ in more "
                    "than '.' and '_'"
                )
            try:
                await broker.topics.create(
                    topic.name, partitions=topic.partitions, replication_factor=topic.replication_factor
                )
            except ProtocolError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:  # another broker may have created it
                    raise StartError(f"cannot create topic {topic.name}: {error}") from error


async def _add_users(broker: Broker, users: Sequence[ScramUser]) -> None:
    """Add the users that do not exist. Raises ProtocolError."""
    for user in users:
        if user.name not in broker.metadata.image.user_configs:
            await broker.settings.add_user(user.name, user.credentials)


def _boot_id() -> str:
    """Return a text that differs after each start of the machine, or "" if the system has no boot id."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _describe(error: Exception) -> str:
    from oncelog.cluster.store import UnavailableError
    from oncelog.protocol.errors import ProtocolError

    if isinstance(error, (ProtocolError, UnavailableError, ConfigError)):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error} (set {TRACE_VARIABLE}=1 for a traceback)"


def _supervisor(fd: int) -> socket.socket | None:
    if fd < 0:
        return None
    end = socket.socket(fileno=fd)
    end.setblocking(True)
    os.set_inheritable(fd, False)
    return end


def _with_host_names(config: BrokerConfig) -> BrokerConfig:
    """Advertise this machine's name for each listener on every interface, as Kafka does."""
    listeners = tuple(_with_host_name(listener) for listener in config.client_listeners)
    return msgspec.structs.replace(config, client_listeners=listeners)


def _with_host_name(listener: ListenerConfig) -> ListenerConfig:
    if listener.advertised_host or listener.host not in ("", "0.0.0.0", "::"):
        return listener
    return replace(listener, advertised_host=socket.gethostname())


def _write_pid(path: str) -> None:
    temporary = f"{path}.new"
    try:
        with open(temporary, "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
        os.replace(temporary, path)
    except OSError as error:
        reason = full_disk([os.path.dirname(path)]) if is_full(error) else error.strerror
        raise StartError(f"cannot write {path}: {reason}") from error


def _start_logging(node_id: int) -> logging.Logger:
    """Log to stderr. Each line names the broker, because several brokers of `oncelog up` write to the same stream.

    Raises ConfigError.
    """
    import logging

    from oncelog.broker.config.loggers import JsonFormatter, LineFormatter, start_levels

    handler = logging.StreamHandler(STDERR)
    logger = logging.getLogger("oncelog.process")
    if wants_json(os.environ):
        handler.setFormatter(JsonFormatter(node_id))
        sys.excepthook = lambda *error: logger.critical("the broker ends because of an error", exc_info=error)
    else:
        line = f"%(asctime)s.%(msecs)03d [Broker id={node_id}] %(levelname)s %(name)s: %(message)s"
        handler.setFormatter(LineFormatter(line, "%Y-%m-%d %H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    start_levels(os.environ)
    return logger


def main() -> None:
    """Run the broker of `python -m oncelog.broker.process`, which reads a `Launch` from stdin. Exit with its status."""
    launch = msgspec.json.decode(sys.stdin.buffer.read(), type=Launch)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, sys.stdin.fileno())
    os.close(null)
    status = run(launch)
    finish_output()
    sys.exit(status)


if __name__ == "__main__":
    main()
