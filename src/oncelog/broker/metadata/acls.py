"""Create and delete ACLs. Each change only writes to the tree, and the authorizer follows the image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from oncelog.broker.metadata.loader import MetadataLoader
from oncelog.broker.turns import KEYS_A_TURN, Yielder, in_turns
from oncelog.broker.workers import Runtime
from oncelog.cluster import acl_nodes
from oncelog.cluster.acls import Acl, AclFilter, AclSet
from oncelog.cluster.image import MetadataCache
from oncelog.log.steps import Steps
from oncelog.protocol.errors import ErrorCode, ProtocolError, Refusal

MOST_CHANGES = 10_000
"""The maximum number of ACLs that one request creates or deletes, as in Kafka."""
MOST_ACLS = 100_000
"""The maximum number of ACLs of a cluster."""
MOST_COMPARED = 10_000_000
"""The maximum number of ACLs that one request compares with its filters. No other metadata changes meanwhile."""


class AclAdministration:
    """Carry out the changes of ACLs that clients request, and list ACLs."""

    def __init__(self, loader: MetadataLoader, cache: MetadataCache, runtime: Runtime) -> None:
        self._loader = loader
        self._cache = cache
        self._workers = runtime.workers
        self._logger = runtime.logger

    async def matching(self, chosen: AclFilter) -> list[Acl]:
        """Return the ACLs that a filter selects."""
        return await in_turns(_matching(self._cache.image.acls, chosen), KEYS_A_TURN)

    async def create(self, acls: Iterable[Acl]) -> None:
        """Create all these ACLs or none. Existing ones are left. They take effect before this returns.

        Raises POLICY_VIOLATION if there are too many, and REQUEST_TIMED_OUT.
        """
        async with self._loader.changing_newest("ACLs") as log:
            known = self._cache.image.acls
            due = await in_turns(_missing(known, acls))
            if len(due) > MOST_CHANGES:
                raise ProtocolError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
            if len(known) + len(due) > MOST_ACLS:
                message = f"a cluster has at most {MOST_ACLS} ACLs, and this one has {len(known)}"
                raise ProtocolError(ErrorCode.POLICY_VIOLATION, message)
            if due:
                await self._workers.write_store(acl_nodes.create, log, due)
        self._log("created", due.values())

    async def delete(self, filters: Sequence[AclFilter | Refusal]) -> list[list[Acl] | Refusal]:
        """Delete all ACLs that the filters select, or none. Return them by filter.

        A rejected filter selects none, and is returned. A filter for all ACLs also deletes damaged ones. Raises
        INVALID_REQUEST or POLICY_VIOLATION if there are too many ACLs or filters, and REQUEST_TIMED_OUT.
        """
        async with self._loader.changing_newest("ACLs") as log:
            acls = self._cache.image.acls
            results: list[list[Acl] | Refusal] = []
            compared = 0
            names: dict[str, Acl] = {}
            damaged: frozenset[str] = frozenset()
            yielder = Yielder()
            for chosen in filters:
                await yielder.next()
                if isinstance(chosen, Refusal):
                    results.append(chosen)
                    continue
                compared += len(acls.candidates(chosen))
                if compared > MOST_COMPARED:
                    message = f"{len(filters)} filters are too many for a request, because the cluster has many ACLs"
                    raise ProtocolError(ErrorCode.POLICY_VIOLATION, message)
                matching = await in_turns(_matching(acls, chosen), KEYS_A_TURN)
                names.update(await in_turns(_named(matching)))
                if chosen.selects_all:
                    damaged |= acls.unreadable
                results.append(matching)
                if len(names) > MOST_CHANGES:
                    message = f"Cannot remove more than {MOST_CHANGES} acls in a single delete operation."
                    raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
            if names or damaged:
                await self._workers.write_store(acl_nodes.delete, log, [*names, *damaged])
        self._log("deleted", names.values())
        return results

    def _log(self, what: str, acls: Iterable[Acl]) -> None:
        changed = list(acls)
        if changed:
            self._logger.info("%s %d ACLs, the first one is %s", what, len(changed), changed[0])


def _matching(acls: AclSet, chosen: AclFilter) -> Steps[list[Acl]]:
    found = []
    for acl in acls.candidates(chosen):
        yield
        if chosen.matches(acl):
            found.append(acl)
    return found


def _missing(known: AclSet, acls: Iterable[Acl]) -> Steps[dict[str, Acl]]:
    due = {}
    for name, acl in _names(acls):
        yield
        if name not in known.by_node:
            due[name] = acl
    return due


def _named(acls: Iterable[Acl]) -> Steps[dict[str, Acl]]:
    names = {}
    for name, acl in _names(acls):
        yield
        names[name] = acl
    return names


def _names(acls: Iterable[Acl]) -> Iterator[tuple[str, Acl]]:
    for acl in acls:
        yield acl_nodes.node_name(acl), acl
