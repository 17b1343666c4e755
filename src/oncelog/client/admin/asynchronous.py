"""The admin client for asyncio. Its methods are the functions of the other modules of this package."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from oncelog.client.admin import (
    acls,
    configs,
    features,
    group_descriptions,
    groups,
    hanging,
    log_dirs,
    producer_batches,
    quotas,
    replica_offsets,
    replication,
    tokens,
    transactions,
    users,
)
from oncelog.client.admin import topics as topic_calls
from oncelog.client.admin._shared import AdminBase, admin_options
from oncelog.client.blocking import name_wrapped_methods
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import for_notebooks
from oncelog.client.requests import offsets as offset_calls

P = ParamSpec("P")
T = TypeVar("T")


def _asked(
    function: Callable[Concatenate[ClusterClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Admin, P], Coroutine[Any, Any, T]]:
    """Return a method that calls this function with the Admin's cluster. It has the same arguments and docstring."""

    @functools.wraps(function)
    async def ask(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.cluster.calls.call():
            return for_notebooks(await function(self.cluster, *args, **kwargs))

    found = inspect.signature(function)
    first, *others = found.parameters.values()
    ask.__dict__["__signature__"] = found.replace(
        parameters=[first.replace(name="self", annotation=first.empty), *others]
    )
    return ask


class Admin(AdminBase):
    """Administer a cluster, as `oncelog.Admin` does. Use it with `async with`, or call `await close()`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        servers, found = admin_options(config, {**options, "bootstrap_servers": bootstrap_servers})
        self.cluster = ClusterClient(servers, what="admin client", **found)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calls in progress raise ClientClosedError."""
        self.cluster.calls.check_loop()
        await self.cluster.close()

    async def reach(self, timeout: float) -> None:
        """Connect to any broker within `timeout` seconds. Raises ConnectionFailedError that names the addresses."""
        with self.cluster.calls.call():
            await self.cluster.reach(timeout * 1000)

    # -- topics -----------------------------------------------------------------------------------------------
    create_topics = _asked(topic_calls.create_topics)
    delete_topics = _asked(topic_calls.delete_topics)
    delete_records = _asked(offset_calls.delete_records)
    list_topics = _asked(topic_calls.count_partitions)
    topics = _asked(topic_calls.list_topics)
    describe_topics = _asked(topic_calls.describe_topics)
    offsets = _asked(topic_calls.offsets_for)
    create_partitions = _asked(topic_calls.create_partitions)
    end_offsets = _asked(group_descriptions.ends)

    # -- settings ---------------------------------------------------------------------------------------------
    describe_configs = _asked(configs.describe_configs)
    describe_config_entries = _asked(configs.describe_config_entries)
    list_config_resources = _asked(configs.list_config_resources)
    alter_configs = _asked(configs.alter_configs)
    alter_topic_configs = _asked(configs.alter_topic_configs)
    alter_broker_configs = _asked(configs.alter_broker_configs)

    # -- cluster ----------------------------------------------------------------------------------------------
    describe_cluster = _asked(topic_calls.describe_cluster)
    describe_replication = _asked(replication.describe_replication)
    describe_replica_offsets = _asked(replica_offsets.describe_replica_offsets)
    describe_log_dirs = _asked(log_dirs.describe_log_dirs)
    describe_features = _asked(features.describe_features)
    update_features = _asked(features.update_features)

    # -- permissions and quotas --------------------------------------------------------------------------------
    create_acls = _asked(acls.create_acls)
    describe_acls = _asked(acls.describe_acls)
    delete_acls = _asked(acls.delete_acls)
    alter_user_scram_credentials = _asked(users.alter_user_scram_credentials)
    describe_user_scram_credentials = _asked(users.describe_user_scram_credentials)
    alter_client_quotas = _asked(quotas.alter_client_quotas)
    describe_client_quotas = _asked(quotas.describe_client_quotas)
    create_delegation_token = _asked(tokens.create_delegation_token)
    renew_delegation_token = _asked(tokens.renew_delegation_token)
    expire_delegation_token = _asked(tokens.expire_delegation_token)
    describe_delegation_tokens = _asked(tokens.describe_delegation_tokens)

    # -- groups -----------------------------------------------------------------------------------------------
    list_groups = _asked(group_descriptions.list_groups)
    describe_group = _asked(group_descriptions.describe_group)
    committed = _asked(group_descriptions.committed)
    set_offsets = _asked(groups.set_offsets)
    delete_groups = _asked(groups.delete_groups)
    delete_offsets = _asked(groups.delete_offsets)
    seek_group = _asked(groups.seek)
    remove_members = _asked(groups.remove_members)

    # -- transactions -----------------------------------------------------------------------------------------
    list_transactions = _asked(transactions.list_transactions)
    describe_transaction = _asked(transactions.describe_transaction)
    describe_producers = _asked(transactions.describe_producers)
    describe_producer_batches = _asked(producer_batches.describe_producer_batches)
    coordinated_transactions = _asked(transactions.coordinated)
    find_hanging_transactions = _asked(hanging.find_hanging)
    abort_transaction = _asked(transactions.abort_transaction)
    fence_producers = _asked(transactions.fence_producers)
    terminate_transaction = _asked(transactions.terminate_transaction)


name_wrapped_methods(Admin)
