"""Create what the table of permissions is about."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.kinds import AclOperation, AclResource, PatternType
from oncelog.protocol.messages.offset_commit import OffsetCommitRequest
from support.permission_rows import GONE, GONE_ID, OPEN, SHUT
from support.permissions import Grant, built, grant
from support.wire import Wire, retried


def prepared(administrator: Wire) -> dict[str, UUID]:
    """Create topics, groups and transactional ids, and open one of each to the client. Return the topics' ids."""
    ids = {name: administrator.create_topic(name) for name in (OPEN, SHUT)}
    offsets = [{"name": name, "partitions": [{"partition_index": 0, "committed_offset": 1}]} for name in ids]
    for name in (OPEN, SHUT):
        administrator.find_coordinator(name, 0)
        administrator.session(name)
        commit = built(OffsetCommitRequest, {"group_id": name, "topics": offsets})
        retried(lambda commit=commit: administrator.call(commit, 9).topics[0].partitions[0])  # type: ignore[misc]
    kinds = (AclResource.TOPIC, AclResource.GROUP, AclResource.TRANSACTIONAL_ID)
    grants = [Grant(AclOperation.ALL, kind, OPEN) for kind in kinds if kind is not AclResource.TOPIC]
    wanted = (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    )
    grants += [Grant(operation, AclResource.TOPIC, OPEN) for operation in wanted]
    grants.append(Grant(AclOperation.CREATE, AclResource.TOPIC, OPEN, pattern=PatternType.PREFIXED))
    grant(administrator, grants)
    return {**ids, GONE: GONE_ID}
