"""The page of access: users that log in with SCRAM, ACLs and quotas. No secret is shown: brokers return none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from oncelog import errors
from oncelog.console.model import Page, View
from oncelog.console.tables import Column, Row, Table
from oncelog.protocol.errors import ErrorCode

USERS = (
    Column("user", "User", "id"),
    Column("mechanism", "Mechanism"),
    Column("iterations", "Iterations", "number", "How often the password is hashed"),
)
ACLS = (
    Column("principal", "Principal", "id"),
    Column("permission_type", "Permission", "state"),
    Column("operation", "Operation"),
    Column("resource_type", "Resource"),
    Column("name", "Name", "id"),
    Column("pattern_type", "Pattern"),
    Column("host", "Host", "id"),
)
QUOTAS = (
    Column("user", "User", "id"),
    Column("client_id", "Client id", "id"),
    Column("ip", "IP", "id"),
    Column("key", "Quota"),
    Column("value", "Value", "number"),
)
NO_AUTHORIZER = "The brokers have no authorizer, so every client may do everything."


async def load(view: View) -> Page:
    """Load users, ACLs and quotas. A table that the client may not see says so."""
    (users, no_users), (acls, no_acls), (quotas, no_quotas) = await asyncio.gather(
        _or_reason(_users(view)), _or_reason(_acls(view)), _or_reason(_quotas(view))
    )
    tables = [
        Table("users", "Users", USERS, view.query, empty=no_users or "No user has a SCRAM password.").fill(users),
        Table("acls", "ACLs", ACLS, view.query, main=False, empty=no_acls or "There is no ACL.").fill(acls),
        Table("quotas", "Quotas", QUOTAS, view.query, main=False, empty=no_quotas or "There is no quota.").fill(quotas),
    ]
    return Page("Access", "access.html", tables=tables)


async def _or_reason(rows: Awaitable[list[Row]]) -> tuple[list[Row], str]:
    """Return rows, or none and the reason if the client may not see them."""
    try:
        return await rows, ""
    except (errors.AuthorizationError, errors.UnsupportedError) as error:
        return [], f"{error.message} ({error.code.name})."
    except errors.RequestError as error:
        if error.code is ErrorCode.SECURITY_DISABLED:
            return [], NO_AUTHORIZER
        if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return [], f"{error.message} ({error.code.name})."
        raise


async def _users(view: View) -> list[Row]:
    found = await view.admin.describe_user_scram_credentials()
    return [{"user": user, **each._asdict()} for user, some in sorted(found.items()) for each in some]


async def _acls(view: View) -> list[Row]:
    return [each._asdict() for each in await view.admin.describe_acls()]


async def _quotas(view: View) -> list[Row]:
    found = await view.admin.describe_client_quotas()
    return [
        {**entity._asdict(), "key": key, "value": int(value) if value.is_integer() else value}
        for entity, values in found.items()
        for key, value in values.items()
    ]
