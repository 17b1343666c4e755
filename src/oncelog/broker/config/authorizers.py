"""Check the settings of the authorizer."""

from __future__ import annotations

from oncelog.broker.config.errors import ConfigError

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_FORMER = frozenset({"kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer"})
"""Authorizers of Kafka with ZooKeeper."""


def check_authorizer(class_name: str, super_users: str) -> None:
    """Raise ConfigError if the broker does not have this authorizer, or if a super user is not a principal."""
    if class_name and class_name != STANDARD_AUTHORIZER:
        reason = "works only with ZooKeeper" if class_name in _FORMER else "is a Java class"
        raise ConfigError(
            f"authorizer.class.name must be empty or {STANDARD_AUTHORIZER}: {class_name} {reason}, "
            "which oncelog cannot load"
        )
    parse_super_users(super_users)


def parse_super_users(text: str) -> frozenset[str]:
    """Return the principals in `super.users`, which are separated by semicolons because names may have commas.

    Raises ConfigError if one has no type.
    """
    found = frozenset(part.strip() for part in text.split(";") if part.strip())
    for principal in sorted(found):
        if ":" not in principal:
            message = f"super.users needs principals in the form TYPE:NAME, such as User:admin, not {principal!r}"
            raise ConfigError(message)
    return found
