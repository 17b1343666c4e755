"""The methods of other Kafka clients that these clients lack, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar, NoReturn

_ALL_PARTITIONS = "call assign() with all partitions; those that were assigned before keep their positions"
_BATCHES = "call send(), which batches records, or send_table()"
_CREDENTIALS = "create a new client with sasl_username and sasl_password"
_END = "call end_offsets(), which returns the last stable offsets with read_committed"

PRODUCER = {
    **dict.fromkeys(("create_batch", "produce_batch", "send_batch"), _BATCHES),
    "cluster_id": "call Admin.describe_cluster()",
    "init_transactions": "the constructor does it, or start() in oncelog.aio",
    "list_topics": "call Admin.list_topics(), or partitions_for()",
    "poll": "the client's own thread calls on_delivery",
    "produce": "call send(); the arguments of its on_delivery are (metadata, error), in this order",
    "send_and_wait": "call send(...).result(), or await (await send(...)) in oncelog.aio",
    "send_offsets_to_transaction": "call send_offsets(consumer)",
    "set_sasl_credentials": _CREDENTIALS,
    "stop": "call close()",
}
"""Method of a producer of confluent-kafka or aiokafka -> what to do instead."""

CONSUMER = {
    **dict.fromkeys(("incremental_assign", "incremental_unassign"), _ALL_PARTITIONS),
    **dict.fromkeys(("consume", "getmany"), "call poll(timeout, max_records), with the timeout in seconds"),
    **dict.fromkeys(("highwater", "last_stable_offset"), _END),
    "cluster_id": "call Admin.describe_cluster()",
    "consumer_group_metadata": "call group_metadata()",
    "get_watermark_offsets": "call beginning_offsets() and end_offsets()",
    "getone": "iterate over the consumer, or call poll(None, max_records=1)",
    "last_poll_timestamp": "keep the time of your last poll()",
    "memberid": "call group_metadata(), which has the member_id",
    "partitions_for_topic": "call partitions_for()",
    "set_sasl_credentials": _CREDENTIALS,
    "stop": "call close()",
    "store_offsets": "call commit({(topic, partition): offset})",
    "topics": "call list_topics()",
    "unassign": "call unsubscribe(), or assign([])",
}
"""Method of a consumer of confluent-kafka or aiokafka -> what to do instead."""


_NOT_YET = {
    "alter_replica_log_dirs": "moving replicas between log directories (KIP-113)",
    "alter_partition_reassignments": "moving replicas between brokers (KIP-455)",
    "list_partition_reassignments": "moving replicas between brokers (KIP-455)",
    "elect_leaders": "electing leaders (KIP-460)",
    "describe_metadata_quorum": "the KRaft quorum (KIP-836)",
    "describe_share_groups": "share groups (KIP-932)",
}
"""Method of Kafka's Admin that is not supported yet -> its subject."""

ADMIN = {
    "alter_consumer_group_offsets": "call set_offsets()",
    "describe_delegation_token": "call describe_delegation_tokens()",
    "list_consumer_group_offsets": "call committed()",
    "list_offsets": "call offsets()",
    **{
        name: f"Admin does not support {subject} yet; use Apache Kafka's tools with a cluster that supports it"
        for name, subject in _NOT_YET.items()
    },
}
"""Method of Kafka's Admin -> what to do instead."""


class OtherNames:
    """Raise an AttributeError that says what to do instead of a method of another client, or names a similar method."""

    _other_names: ClassVar[Mapping[str, str]]

    if not TYPE_CHECKING:  # a type checker reports an unknown name without this

        def __getattr__(self, name: str) -> NoReturn:
            advice = self._other_names.get(name) or self._similar(name)
            message = f"{type(self).__name__!r} object has no attribute {name!r}" + (f"; {advice}" if advice else "")
            raise AttributeError(message, name=name, obj=self)

        def _similar(self, name: str) -> str:
            known = [each for each in dir(type(self)) if not each.startswith("_")]
            near = [] if name.startswith("_") else get_close_matches(name, known, n=1)
            return f"did you mean {near[0]}?" if near else ""
