"""The blocking admin client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oncelog.client.admin._shared import AdminBase
from oncelog.client.admin.asynchronous import Admin as Awaited
from oncelog.client.blocking import Blocking, blocking

__all__ = ["Admin"]


class Admin(AdminBase, Blocking[Awaited]):
    """Administer a cluster: topics, settings, groups and transactions (Kafka's Admin).

        with Admin("localhost:9092") as admin:
            admin.create_topics("orders", partitions=6)

    Use it as a context manager, or call `close`. `bootstrap_servers` is "HOST:PORT,..." or a list of such strings.
    Options have Kafka's names with `_` for `.`. `config` takes a mapping with the dotted names.

    After a temporary error, a call retries for default_api_timeout_ms (60 s). If no broker has ever answered, it gives
    up after 10 s, unless that option is set. Errors are in `oncelog.errors`. `oncelog.aio.Admin` has the same methods
    as coroutines.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(Awaited(bootstrap_servers, config, **options))
        self.cluster = self._awaited.cluster

    close = blocking(Awaited.close)
    reach = blocking(Awaited.reach)

    # -- topics -----------------------------------------------------------------------------------------------
    create_topics = blocking(Awaited.create_topics)
    delete_topics = blocking(Awaited.delete_topics)
    delete_records = blocking(Awaited.delete_records)
    list_topics = blocking(Awaited.list_topics)
    topics = blocking(Awaited.topics)
    describe_topics = blocking(Awaited.describe_topics)
    offsets = blocking(Awaited.offsets)
    create_partitions = blocking(Awaited.create_partitions)
    end_offsets = blocking(Awaited.end_offsets)

    # -- settings ---------------------------------------------------------------------------------------------
    describe_configs = blocking(Awaited.describe_configs)
    describe_config_entries = blocking(Awaited.describe_config_entries)
    list_config_resources = blocking(Awaited.list_config_resources)
    alter_configs = blocking(Awaited.alter_configs)
    alter_topic_configs = blocking(Awaited.alter_topic_configs)
    alter_broker_configs = blocking(Awaited.alter_broker_configs)

    # -- cluster ----------------------------------------------------------------------------------------------
    describe_cluster = blocking(Awaited.describe_cluster)
    describe_replication = blocking(Awaited.describe_replication)
    describe_replica_offsets = blocking(Awaited.describe_replica_offsets)
    describe_log_dirs = blocking(Awaited.describe_log_dirs)
    describe_features = blocking(Awaited.describe_features)
    update_features = blocking(Awaited.update_features)

    # -- permissions and quotas --------------------------------------------------------------------------------
    create_acls = blocking(Awaited.create_acls)
    describe_acls = blocking(Awaited.describe_acls)
    delete_acls = blocking(Awaited.delete_acls)
    alter_user_scram_credentials = blocking(Awaited.alter_user_scram_credentials)
    describe_user_scram_credentials = blocking(Awaited.describe_user_scram_credentials)
    alter_client_quotas = blocking(Awaited.alter_client_quotas)
    describe_client_quotas = blocking(Awaited.describe_client_quotas)
    create_delegation_token = blocking(Awaited.create_delegation_token)
    renew_delegation_token = blocking(Awaited.renew_delegation_token)
    expire_delegation_token = blocking(Awaited.expire_delegation_token)
    describe_delegation_tokens = blocking(Awaited.describe_delegation_tokens)

    # -- groups -----------------------------------------------------------------------------------------------
    list_groups = blocking(Awaited.list_groups)
    describe_group = blocking(Awaited.describe_group)
    committed = blocking(Awaited.committed)
    set_offsets = blocking(Awaited.set_offsets)
    delete_groups = blocking(Awaited.delete_groups)
    delete_offsets = blocking(Awaited.delete_offsets)
    seek_group = blocking(Awaited.seek_group)
    remove_members = blocking(Awaited.remove_members)

    # -- transactions -----------------------------------------------------------------------------------------
    list_transactions = blocking(Awaited.list_transactions)
    describe_transaction = blocking(Awaited.describe_transaction)
    describe_producers = blocking(Awaited.describe_producers)
    describe_producer_batches = blocking(Awaited.describe_producer_batches)
    coordinated_transactions = blocking(Awaited.coordinated_transactions)
    find_hanging_transactions = blocking(Awaited.find_hanging_transactions)
    abort_transaction = blocking(Awaited.abort_transaction)
    fence_producers = blocking(Awaited.fence_producers)
    terminate_transaction = blocking(Awaited.terminate_transaction)
