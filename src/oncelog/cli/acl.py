"""`oncelog acl`: add, list and delete ACLs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from oncelog.cli.common import Command, confirm, confirmed, connected, formatted, open_admin, show, with_options
from oncelog.cli.lazy import LazyGroup, examples
from oncelog.protocol.kinds import AclOperation

if TYPE_CHECKING:
    from oncelog.client.admin.acls import AclBinding, AclBindingFilter


COLUMNS = ("resource_type", "pattern_type", "name", "principal", "host", "operation", "permission_type")
_TYPES = ("topic", "group", "transactional_id", "delegation_token", "user")
_NOTES = {"user": ", as the resource of create_tokens and describe_tokens"}
_OPERATIONS = tuple(each.name.lower() for each in AclOperation if each >= AclOperation.ALL)

acl = LazyGroup(
    "acl",
    help="Add, list and delete ACLs (access control lists). An ACL allows or denies a user an operation.",
    table={
        "add": ("oncelog.cli.acl:add", "Allow or deny operations on resources."),
        "list": ("oncelog.cli.acl:list_acls", "List ACLs."),
        "delete": ("oncelog.cli.acl:delete", "Delete ACLs."),
    },
)


def _principal(_context: click.Context, _option: click.Parameter, given: Any) -> Any:
    for each in (given,) if isinstance(given, str) else given or ():
        if not each.partition(":")[2]:
            raise click.BadParameter(f"a principal is TYPE:NAME, such as User:alice, not {each!r}")
    return given


def resources(command: Command) -> Command:
    """Add the options that name resources."""
    options = [
        click.option(
            f"--{kind.replace('_', '-')}",
            multiple=True,
            metavar="NAME",
            help=f"A {kind.replace('_', ' ')}, or * for all{_NOTES.get(kind, '')}. Repeatable.",
        )
        for kind in _TYPES
    ]
    options.append(click.option("--cluster", is_flag=True, help="The cluster itself."))
    options.append(click.option("--prefixed", is_flag=True, help="Each NAME is a prefix of names."))
    return with_options(command, options)


def _named(given: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Take the options of `resources`. Return (type, name, pattern type) of each resource."""
    from oncelog.client.admin.acls import CLUSTER_NAME

    pattern = "prefixed" if given.pop("prefixed") else "literal"
    found = [("cluster", CLUSTER_NAME, "literal")] if given.pop("cluster") else []
    for kind in _TYPES:
        found += [(kind, name, pattern) for name in given.pop(kind)]
    return found


def _rows(acls: Iterable[AclBinding]) -> list[dict[str, Any]]:
    return [{name: getattr(each, name) for name in COLUMNS} for each in acls]


@click.command(
    epilog=examples(
        "oncelog acl add --topic orders --allow User:alice --operation read",
        "oncelog acl add --topic shop- --prefixed --allow User:shop --operation all --host 10.0.0.7",
    )
)
@resources
@click.option(
    "--allow", multiple=True, callback=_principal, metavar="PRINCIPAL", help="Allow this principal. Repeatable."
)
@click.option(
    "--deny", multiple=True, callback=_principal, metavar="PRINCIPAL", help="Deny this principal. Repeatable."
)
@click.option(
    "--operation",
    "operations",
    multiple=True,
    required=True,
    type=click.Choice(_OPERATIONS),
    help="An operation. Repeatable. READ, WRITE, DELETE and ALTER include DESCRIBE.",
)
@click.option("--host", "hosts", multiple=True, metavar="ADDRESS", help="Only from this address. Repeatable.")
@connected
@formatted
def add(
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    operations: tuple[str, ...],
    hosts: tuple[str, ...],
    bootstrap: str,
    form: str,
    **given: Any,
) -> None:
    """Allow or deny principals operations on resources. Keep ACLs that already exist.

    A principal is a user, such as User:alice, or User:* for all users. If a DENY and an ALLOW both apply, the broker
    denies the operation.
    """
    from oncelog.client.admin.acls import AclBinding

    named = _named(given)
    if not named:
        raise click.UsageError("name a resource, such as --topic orders")
    principals = [(each, "allow") for each in allow] + [(each, "deny") for each in deny]
    if not principals:
        raise click.UsageError("name a principal with --allow or --deny, such as --allow User:alice")
    acls = [
        AclBinding(kind, name, principal, operation, pattern, host, permission)
        for (kind, name, pattern), (principal, permission), operation, host in product(
            named, principals, operations, hosts or ("*",)
        )
    ]
    with open_admin(bootstrap) as admin:
        admin.create_acls(acls)
    show(_rows(acls), form, COLUMNS)


def filtered(command: Command) -> Command:
    """Add the options that select ACLs."""
    command = click.option(
        "--permission", type=click.Choice(["allow", "deny"]), help="Only ACLs that allow, or only ACLs that deny."
    )(command)
    command = click.option("--host", metavar="ADDRESS", help="Only ACLs with this host. * selects ACLs for all hosts.")(
        command
    )
    command = click.option("--operation", type=click.Choice(_OPERATIONS), help="Only ACLs with this operation.")(
        command
    )
    command = click.option(
        "--principal", callback=_principal, metavar="PRINCIPAL", help="Only ACLs of this principal."
    )(command)
    command = click.option(
        "--match", is_flag=True, help="All ACLs that apply to the resources: by name, by prefix or by *."
    )(command)
    return resources(command)


def _filters(given: dict[str, Any]) -> list[AclBindingFilter]:
    from oncelog.client.admin.acls import AclBindingFilter

    match = given.pop("match")
    if match and given["prefixed"]:
        raise click.UsageError("--match and --prefixed cannot be used together; omit one of them")
    prefixed = given["prefixed"]
    named = _named(given)
    if (match or prefixed) and not named:
        raise click.UsageError("name a resource, such as --topic orders")
    others = {
        "principal": given["principal"],
        "operation": given["operation"],
        "host": given["host"],
        "permission_type": given["permission"],
    }
    if not named:
        return [AclBindingFilter(**others)]
    return [
        AclBindingFilter(kind, name, pattern_type="match" if match else pattern, **others)
        for kind, name, pattern in named
    ]


@click.command(
    "list", epilog=examples("oncelog acl list", "oncelog acl list --topic orders --match --principal User:alice")
)
@filtered
@connected
@formatted
def list_acls(bootstrap: str, form: str, **given: Any) -> None:
    """List all ACLs, or those that the options select."""
    filters = _filters(given)
    with open_admin(bootstrap) as admin:
        found = {each for chosen in filters for each in admin.describe_acls(chosen)}
    show(_rows(sorted(found)), form, COLUMNS)


@click.command(epilog=examples("oncelog acl delete --topic orders --principal User:alice --yes"))
@filtered
@confirmed
@connected
@formatted
def delete(yes: bool, bootstrap: str, form: str, **given: Any) -> None:
    """Delete the ACLs that the options select, and show them."""
    filters = _filters(given)
    if not any(any(chosen) for chosen in filters):
        raise click.UsageError("select ACLs, for example with --topic orders or --principal User:alice")
    with open_admin(bootstrap) as admin:
        found = {each for chosen in filters for each in admin.describe_acls(chosen)}
        if found:
            confirm(f"this deletes {len(found)} ACL{'s' if len(found) > 1 else ''}", yes=yes)
        deleted = admin.delete_acls(filters)
    show(_rows(deleted), form, COLUMNS)
