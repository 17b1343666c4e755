"""What a client may do with a resource (KIP-430), as bit fields: everything, for there is no authorizer.

Source: Kafka's `AclEntry.supportedOperations`; a bit's number is that of the `AclOperation`.
"""

from __future__ import annotations

from enum import IntEnum


class Operation(IntEnum):
    """`AclOperation`, as far as topics, groups and the cluster have them."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


_OF_ALL = _bits(Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)

OF_TOPIC = _OF_ALL | _bits(Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER)
"""All that may be done with a topic."""
OF_GROUP = _OF_ALL | _bits(Operation.READ, Operation.DELETE)
"""All that may be done with a group."""
OF_CLUSTER = _OF_ALL | _bits(Operation.CREATE, Operation.ALTER, Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE)
"""All that may be done with the cluster."""
NOT_ASKED = -(2**31)
"""What stands there when nobody asked."""
