"""The page of access: users that log in with SCRAM, ACLs and quotas. No secret is shown: brokers return none."""

from __future__ import annotations

import asyncio

from oncelog.console.model import Page, View, or_reason
from oncelog.console.tables import Column, Row, Table

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


async def load(view: View) -> Page:
    """Load users, ACLs and quotas. A table that the client may not see says so."""
    found = await asyncio.gather(*(or_reason(rows(view)) for rows in (_users, _acls, _quotas)))
    kinds = (
        ("users", "Users", USERS, "No user has a SCRAM password."),
        ("acls", "ACLs", ACLS, "There is no ACL."),
        ("quotas", "Quotas", QUOTAS, "There is no quota."),
    )
    tables = [
        Table(name, caption, columns, view.query, main=name == "users", empty=reason or empty, known=not reason).fill(
            rows
        )
        for (name, caption, columns, empty), (rows, reason) in zip(kinds, found, strict=True)
    ]
    return Page("Access", "access.html", tables=tables)


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
