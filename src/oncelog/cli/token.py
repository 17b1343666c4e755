"""`oncelog token`: create, renew, expire and list delegation tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from oncelog import errors
from oncelog.cli.common import connected, duration, formatted, moment, open_admin, show
from oncelog.cli.lazy import LazyGroup, examples

if TYPE_CHECKING:
    from oncelog import Admin
    from oncelog.client.admin.tokens import DelegationToken

COLUMNS = ("token_id", "owner", "requester", "renewers", "issued", "expires", "max")
NO_TIME = -1
"""The duration in a request if none is given."""
_TIMES = {"issued": "issued_ms", "expires": "expires_ms", "max": "max_ms"}

token = LazyGroup(
    "token",
    help="Create, renew, expire and list delegation tokens. A client can log in with a token instead of a password.",
    table={
        "create": ("oncelog.cli.token:create", "Create a token."),
        "renew": ("oncelog.cli.token:renew", "Let a token expire later."),
        "expire": ("oncelog.cli.token:expire", "Remove a token, or let it expire earlier."),
        "list": ("oncelog.cli.token:list_tokens", "List tokens."),
    },
)


def _rows(tokens: Iterable[DelegationToken], form: str) -> list[dict[str, Any]]:
    rows = []
    for each in tokens:
        times = {name: getattr(each, field) for name, field in _TIMES.items()}
        rows.append(
            {
                "token_id": each.token_id,
                "hmac": each.hmac,
                "owner": each.owner,
                "requester": each.requester,
                "renewers": list(each.renewers),
                **({name: moment(ms) for name, ms in times.items()} if form == "text" else times),
            }
        )
    return rows


def _shown(rows: list[dict[str, Any]], form: str, *, hmac: bool) -> None:
    columns = ("token_id", "hmac", *COLUMNS[1:]) if hmac else COLUMNS
    show([{name: row[name] for name in columns} for row in rows], form, columns)


def _found(admin: Admin, token_id: str) -> DelegationToken:
    """Return a token by its id. The HMAC is not an argument, because every user can see the arguments of processes."""
    for each in admin.describe_delegation_tokens():
        if each.token_id == token_id:
            return each
    raise errors.UsageError(f"there is no token {token_id}, or you may not see it; `oncelog token list` lists tokens")


@click.command(
    epilog=examples(
        "oncelog token create", "oncelog token create --owner User:alice --renewer User:scheduler --max-lifetime P2D"
    )
)
@click.option("--owner", metavar="PRINCIPAL", help="The user of the token. Default: your user.")
@click.option(
    "--renewer",
    "renewers",
    multiple=True,
    metavar="PRINCIPAL",
    help="A user that may renew the token, such as User:scheduler. Repeatable.",
)
@click.option(
    "--max-lifetime",
    type=duration,
    default=NO_TIME,
    metavar="ISO",
    help="The token cannot be renewed for longer than this, such as P2D. Default: as long as the broker allows.",
)
@connected
@formatted
def create(owner: str | None, renewers: tuple[str, ...], max_lifetime: int, bootstrap: str, form: str) -> None:
    """Create a token, and show it with its HMAC, which is its password.

    A client logs in with sasl.mechanism=SCRAM-SHA-512, sasl.tokenauth=true, the token id as sasl.username and the HMAC
    as sasl.password.
    """
    with open_admin(bootstrap) as admin:
        made = admin.create_delegation_token(owner=owner, renewers=renewers, max_lifetime_ms=max_lifetime)
    _shown(_rows([made], form), form, hmac=True)


def _change(
    call: Callable[[Admin], Callable[[str, int], int]], token_id: str, period: int, bootstrap: str, form: str
) -> None:
    """Change when a token expires with a call of `Admin`, and show the token."""
    with open_admin(bootstrap) as admin:
        found = _found(admin, token_id)
        expires = call(admin)(found.hmac, period)
    _shown(_rows([found._replace(expires_ms=expires)], form), form, hmac=False)


@click.command(epilog=examples("oncelog token renew TOKEN_ID", "oncelog token renew TOKEN_ID --period PT1H"))
@click.argument("token_id")
@click.option(
    "--period",
    type=duration,
    default=NO_TIME,
    metavar="ISO",
    help="Expire this long after now. Default: the broker's setting.",
)
@connected
@formatted
def renew(token_id: str, period: int, bootstrap: str, form: str) -> None:
    """Let a token expire later. You must be its owner or one of its renewers."""
    _change(lambda admin: admin.renew_delegation_token, token_id, period, bootstrap, form)


@click.command(epilog=examples("oncelog token expire TOKEN_ID", "oncelog token expire TOKEN_ID --period PT10M"))
@click.argument("token_id")
@click.option(
    "--period", type=duration, default=NO_TIME, metavar="ISO", help="Expire this long after now. Default: at once."
)
@connected
@formatted
def expire(token_id: str, period: int, bootstrap: str, form: str) -> None:
    """Remove a token, or let it expire earlier. You must be its owner or one of its renewers."""
    _change(lambda admin: admin.expire_delegation_token, token_id, period, bootstrap, form)


@click.command("list", epilog=examples("oncelog token list", "oncelog token list --owner User:alice"))
@click.option(
    "--owner",
    "owners",
    multiple=True,
    metavar="PRINCIPAL",
    help="Only tokens that this user owns or may renew. Repeatable.",
)
@click.option("--hmac", is_flag=True, help="Show the HMACs, which are the passwords of the tokens.")
@connected
@formatted
def list_tokens(owners: tuple[str, ...], hmac: bool, bootstrap: str, form: str) -> None:
    """List the tokens that you own or may renew, and others that you may describe."""
    with open_admin(bootstrap) as admin:
        found = admin.describe_delegation_tokens(owners or None)
    _shown(_rows(found, form), form, hmac=hmac)
