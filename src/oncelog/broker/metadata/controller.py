"""Become the controller of the cluster, and write the elections that `cluster/controller/reconcile` decides.

The broker that creates the ephemeral node `/controller` is the controller. In the same `multi`, it increments
`/controller_epoch`, and each of its writes requires the version of that node. So a former controller writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.topics import effective
from oncelog.broker.membership import Membership
from oncelog.broker.metadata.loader import MetadataLoader
from oncelog.broker.retrying import STORE_RETRY_S, Problem
from oncelog.broker.workers import Runtime
from oncelog.cluster.brokers import CONTROLLER, NO_BROKER, encode_controller
from oncelog.cluster.changes import ChangeLog, cannot_write
from oncelog.cluster.controller.isr_log import (
    election_summary,
    stuck_partitions,
    stuck_summary,
    unclean_elections,
    unclean_summary,
)
from oncelog.cluster.controller.reconcile import CONTROLLER_EPOCH, ClusterView, Partition, reconcile, unbalanced
from oncelog.cluster.image import MetadataCache, MetadataDelta, MetadataImage
from oncelog.cluster.state_writes import BATCH, REJECTED, StateWrite, write_states
from oncelog.cluster.store import (
    BadVersionError,
    Create,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    Operation,
    OutcomeUnknownError,
    SessionExpiredError,
    Set,
    StoreError,
    UnavailableError,
)
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.topics import TopicPartition


class Claim(NamedTuple):
    """The right of this broker to write as the controller."""

    session: int
    epoch: int
    version: int
    """The version of `/controller_epoch`."""


class Controller:
    """The part of a broker that stands for election, and does the controller's work while it is elected."""

    def __init__(
        self,
        store: MetadataStore,
        cache: MetadataCache,
        loader: MetadataLoader,
        membership: Membership,
        config: DynamicConfig,
        runtime: Runtime,
    ) -> None:
        self._store = store
        self._changes = ChangeLog(store)
        self._cache = cache
        self._loader = loader
        self._membership = membership
        self._config = config
        self._workers = runtime.workers
        self._node_id = membership.node_id
        self._logger = runtime.logger
        self.unclean_elections = 0
        """The partitions for which this controller has elected a leader that was not in sync."""
        self._claim: Claim | None = None
        self._closed = False
        self._seen: frozenset[int] | None = frozenset()
        """See `ClusterView.seen`."""
        self._is_started = False
        self._touched: dict[str, set[int]] | None = None
        """The partitions to reconcile in the next turn, by topic. None means all."""
        self._stuck: frozenset[str] = frozenset()
        """The partitions that a warning has named, because they wait for complete replicas."""
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()

    async def start(self) -> None:
        """If there is no controller, try to become it. Then work in the background. Raises StoreError."""
        if self._cache.image.controller == NO_BROKER:
            await self._stand()
            await self._loader.refresh()
        self._is_started = True
        self._see(self._cache.image)
        self._wake.set()
        self._workers.spawn(self._run(), "controller")
        self._workers.spawn(self._stop_awaiting(), "wait for the other brokers of a full start")
        if self._config.static.auto_leader_rebalance_enable:
            self._workers.spawn(self._balance(), "balance leaders")

    def close(self) -> None:
        """Stop writing. The broker keeps `/controller` until its session ends."""
        self._closed, self._claim = True, None

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Reconcile the changed partitions in the next turn.

        If a broker or a broker setting has changed, reconcile all partitions.
        """
        if delta.brokers_changed:
            self._see(delta.after)
        if delta.brokers_changed and self._current() is not None:
            before, after = delta.before.brokers.keys(), delta.after.brokers.keys()
            changes = {"new": after - before, "gone": before - after}
            changed = "; ".join(f"{what}: {_listed(brokers)}" for what, brokers in changes.items() if brokers)
            if changed:
                self._logger.info("running brokers: %s (%s)", _listed(after), changed)
        if delta.brokers_changed or delta.before.broker_configs != delta.after.broker_configs:
            self._touched = None
        elif self._touched is not None:
            whole = {
                topic.name: range(topic.partition_count)
                for topic in delta.changed_topics
                if delta.settings_changed(topic)
            }
            for name, partitions in {**delta.changed_partitions, **whole}.items():
                self._touched.setdefault(name, set()).update(partitions)
        self._wake.set()

    async def elect(self, partitions: Collection[TopicPartition], *, unclean: bool) -> None:
        """Let the preferred leaders lead these partitions. With `unclean`, elect any replica if there is no leader.

        The image shows the result. Raises NOT_CONTROLLER if this broker is not the controller, and REQUEST_TIMED_OUT if
        the tree cannot be read or written.
        """
        claim = self._current()
        if claim is None:
            raise ProtocolError(ErrorCode.NOT_CONTROLLER, f"broker {self._node_id} is not the controller")
        try:
            async with self._writing:
                image = self._cache.image
                done = await self._workers.write_store(self._elect_now, image, claim, partitions, unclean)
            self._warn_of_unclean(image, done)
            await self._loader.refresh()
        except StoreError as error:
            raise cannot_write("metadata", error) from error

    async def current_epoch(self) -> int:
        """Return the epoch of the last election, on any broker. Raises StoreError."""
        found = await self._workers.read_store(self._store.get, CONTROLLER_EPOCH)
        return int(found.data)

    # -- work -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        problem = Problem(self._logger)
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._turn()
            except Exception as error:  # noqa: BLE001 - if this loop ends, the cluster elects no leaders
                problem.failed("the controller cannot elect leaders: %r. Retrying", error)
                self._touched = None
                self._wake.set()
                await asyncio.sleep(STORE_RETRY_S)
            else:
                problem.over()

    async def _turn(self) -> None:
        """If there is no controller, try to become it.

        If this broker is the controller, write the changes that the image requires.
        """
        if self._closed:
            return
        image = self._cache.image
        if image.controller == NO_BROKER or (image.controller == self._node_id and self._current() is None):
            await self._stand()
            await self._loader.refresh()
            if self._cache.image.controller == NO_BROKER and self._membership.epoch >= 0:
                raise UnavailableError("the election of a controller failed")
        claim = self._current()
        if claim is None:
            self._touched = None
            return
        async with self._writing:
            image, touched, self._touched = self._cache.image, self._touched, {}
            writes = await self._workers.read_store(self._decide, image, claim, touched)
            done = await self._workers.write_store(self._write, claim, writes) if writes else []
        if done:
            self._logger.info("%s", election_summary(image, done))
        if writes:
            self._warn_of_unclean(image, done)
            await self._loader.refresh()
        if touched is None:
            self._warn_of_stuck(self._cache.image)

    def _see(self, image: MetadataImage) -> None:
        """Note which brokers have opened their logs. If one of them dies, another one leads at once.

        Before `start`, the image may have brokers whose session has not ended yet although they have died.
        """
        if self._seen is not None and self._is_started:
            self._seen |= {broker for broker, info in image.brokers.items() if not info.starting}

    async def _stop_awaiting(self) -> None:
        """Let others lead instead of brokers that do not start within the session timeout.

        Kafka's controller also waits that long, because it counts a broker as alive until its session times out.
        """
        await asyncio.sleep(self._config.static.broker_session_timeout_ms / 1000)
        self._seen = self._touched = None
        self._wake.set()

    def _warn_of_unclean(self, before: MetadataImage, done: Sequence[StateWrite]) -> None:
        if elections := unclean_elections(before, done):
            self.unclean_elections += len(elections)
            self._logger.warning("%s", unclean_summary(elections))

    def _warn_of_stuck(self, image: MetadataImage) -> None:
        """Say which partitions wait for brokers, each one once. During a full start, these may still start."""
        if self._seen is None:
            found = stuck_partitions(image)
            if new := [each for each in found if each.partition not in self._stuck]:
                self._logger.warning("%s", stuck_summary(new))
            self._stuck = frozenset(each.partition for each in found)

    async def _balance(self) -> None:
        """Let brokers lead their preferred partitions again, at each `leader.imbalance.check.interval.seconds`."""
        while True:
            await asyncio.sleep(self._config.static.leader_imbalance_check_interval_seconds)
            try:
                claim = self._current()
                if claim is None:
                    continue
                keys = await self._workers.read_store(self._unbalanced, self._cache.image, claim)
                for first in range(0, len(keys), BATCH):
                    await self.elect(keys[first : first + BATCH], unclean=False)
            except Exception as error:  # noqa: BLE001 - the next check tries again
                self._logger.warning("cannot elect preferred leaders: %r. Retrying at the next check", error)
            else:
                if keys:
                    self._logger.info("elected the preferred leaders of up to %d partitions", len(keys))

    def _current(self) -> Claim | None:
        """Return the claim, or None if this broker is not the controller, as far as it knows."""
        if self._claim is not None and self._claim.session != self._membership.session:
            self._claim = None
        return self._claim if self._membership.epoch >= 0 and not self._closed else None

    async def _stand(self) -> None:
        if self._membership.epoch < 0:
            return  # the next registration changes the image
        self._claim = await self._workers.write_store(self._stand_now, self._membership.session)
        if self._claim is not None:
            self._touched = None
            running = _listed(self._cache.image.brokers)
            self._logger.info(
                "this broker is the controller, with epoch %d; running brokers: %s", self._claim.epoch, running
            )

    # -- blocking ---------------------------------------------------------------------------------------------------

    def _stand_now(self, session: int) -> Claim | None:
        """Become the controller, and return the claim. Return None if another broker is."""
        try:
            found = self._store.get(CONTROLLER_EPOCH)
        except NoNodeError:
            claim = Claim(session, 1, 0)
            change: Operation = Create(CONTROLLER_EPOCH, b"1")
        else:
            claim = Claim(session, int(found.data) + 1, found.version + 1)
            change = Set(CONTROLLER_EPOCH, str(claim.epoch).encode(), found.version)
        try:
            self._store.multi([Create(CONTROLLER, encode_controller(self._node_id), session), change])
        except (NodeExistsError, BadVersionError, SessionExpiredError, OutcomeUnknownError):
            return self._own_claim(session)  # the answer to this attempt, or to an earlier one, may have been lost
        return claim

    def _own_claim(self, session: int) -> Claim | None:
        """Return the claim that the tree shows, if this session has one."""
        try:
            epoch = self._store.get(CONTROLLER_EPOCH)
            if self._store.get(CONTROLLER).session != session:
                return None
        except NoNodeError:
            return None
        return Claim(session, int(epoch.data), epoch.version)

    def _decide(
        self, image: MetadataImage, claim: Claim, touched: Mapping[str, Iterable[int]] | None
    ) -> list[StateWrite]:
        keys = (
            _all_keys(image)
            if touched is None
            else ((name, index) for name in sorted(touched) for index in sorted(touched[name]))
        )
        return reconcile(self._view(image, claim, keys))

    def _unbalanced(self, image: MetadataImage, claim: Claim) -> list[TopicPartition]:
        view = self._view(image, claim, _all_keys(image))
        return unbalanced(view, self._config.static.leader_imbalance_per_broker_percentage)

    def _elect_now(
        self, image: MetadataImage, claim: Claim, partitions: Collection[TopicPartition], unclean: bool
    ) -> list[StateWrite]:
        view = self._view(image, claim, partitions)
        allowed = [replace(partition, unclean=unclean) for partition in view.partitions]
        view = replace(view, partitions=allowed, seen=None if unclean else view.seen)
        return self._write(claim, reconcile(view, () if unclean else partitions))

    def _view(self, image: MetadataImage, claim: Claim, keys: Iterable[TopicPartition]) -> ClusterView:
        """Return what the controller knows, with the partitions of these keys that exist."""
        found, config, settings = [], self._config.current, dict[str, tuple[bool, int]]()
        for name, index in keys:
            topic, info = image.topic(name), image.partition(name, index)
            if topic is None or info is None:
                continue
            if name not in settings:
                unclean = effective(config, topic.configs, "unclean.leader.election.enable") == "true"
                settings[name] = unclean, int(effective(config, topic.configs, "min.insync.replicas"))
            unclean, least = settings[name]
            least = min(least, len(info.replicas))
            found.append(Partition(name, topic.topic_id, index, info, unclean, least))
        return ClusterView(claim.epoch, claim.version, image.brokers, found, self._seen)

    def _write(self, claim: Claim, writes: Sequence[StateWrite]) -> list[StateWrite]:
        """Change the states, and return the writes that were made. Raises StoreError if the store fails.

        Skip a write whose version check fails: the next image shows whether it is still needed.
        """
        done = []
        for write, error in write_states(self._changes, writes, session=claim.session):
            if error is None:
                done.append(write)
            elif isinstance(error, SessionExpiredError) or error.path == CONTROLLER_EPOCH:
                if self._claim is claim:  # log it once, and keep the claim of a later election
                    self._logger.warning("this broker is no longer the controller")
                    self._claim = None
                break
            elif not isinstance(error, REJECTED):
                raise error
        return done


def led_elsewhere(image: MetadataImage, broker: int) -> int:
    """Return how many partitions the broker leads that another broker could lead."""
    others = {
        other
        for other, info in image.brokers.items()
        if other != broker and not info.shutting_down and not info.starting
    }
    led = (info for topic in image.topics() for info in topic.partitions if info.leader == broker)
    return sum(not others.isdisjoint(info.complete) for info in led)


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(brokers)))


def _all_keys(image: MetadataImage) -> Iterable[TopicPartition]:
    return ((topic.name, index) for topic in image.topics() for index in range(topic.partition_count))
