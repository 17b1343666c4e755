"""Generate the reference of the settings of brokers and topics, from the tables that the broker reads them with."""

from __future__ import annotations

import ast
import inspect
import itertools
from functools import cache

from docs_site.markdown import anchor, code, table, text
from oncelog.broker.config import settings
from oncelog.broker.config.consumer_group_settings import ConsumerGroupSettings
from oncelog.broker.config.dynamic import DYNAMIC
from oncelog.broker.config.entries import type_of
from oncelog.broker.config.ignored_configs import UNUSED, WITHOUT_EFFECT
from oncelog.broker.config.quota_settings import QuotaSettings
from oncelog.broker.config.security_settings import SecuritySettings
from oncelog.broker.config.setting_types import Key
from oncelog.broker.config.settings import keys, names_of
from oncelog.broker.config.topics import TOPIC_KEYS, plain_text
from oncelog.broker.config.topics import WITHOUT_EFFECT as TOPIC_WITHOUT_EFFECT

_LARGEST = {2**63 - 1: "9223372036854775807 (no limit)", 2**31 - 1: "2147483647 (no limit)"}


def broker_page() -> str:
    """Return the page of the broker's settings."""
    rows = (
        (
            anchor(name) + "<br>".join(code(each) for each in names_of(name)),
            code(_default(key)),
            type_of(key).name.lower(),
            "yes" if name in DYNAMIC else "",
            _described(name, key),
        )
        for name, key in sorted(keys().items())
        if name != "log.dir"
    )
    return "\n".join(
        [
            "# Broker settings\n",
            "Set them with `oncelog up --set KEY=VALUE`, in a file like Kafka's `server.properties` (`--config FILE`), "
            "or in variables such as `KAFKA_LOG_RETENTION_MS`. Names, meaning and defaults are Apache Kafka's, unless "
            "the table says otherwise. Times are in milliseconds and sizes in bytes, unless the name "
            "says otherwise.\n",
            '`oncelog cluster alter` changes "dynamic" settings while the broker runs. A setting of a topic '
            "overrides the broker's: see [topic settings](topic-settings.md).\n",
            table(("setting", "default", "type", "dynamic", "what it does"), rows),
            "## Accepted without effect\n",
            "The broker accepts these settings of Apache Kafka and ignores them. It logs a warning for each that is "
            "given.\n",
            ", ".join(code(name) for name in sorted(WITHOUT_EFFECT)) + ".\n",
            "These are checked and shown, but have no effect either, because they concern other brokers or periodic "
            "checks:\n",
            ", ".join(code(name) for name in sorted(UNUSED)) + ".\n",
        ]
    )


def topic_page() -> str:
    """Return the page of the topics' settings."""
    rows = []
    for name, key in sorted(TOPIC_KEYS.items()):
        reason = f" It has no effect here: {TOPIC_WITHOUT_EFFECT[name]}." if name in TOPIC_WITHOUT_EFFECT else ""
        spec = keys()[key.broker_key]
        of_broker = f"[{code(key.broker_key)}](broker-settings.md#{key.broker_key})"
        rows.append(
            (
                anchor(name) + code(name),
                code(_default(spec)),
                type_of(spec).name.lower(),
                of_broker,
                text(key.doc + reason),
            )
        )
    return "\n".join(
        [
            "# Topic settings\n",
            "`oncelog topic create NAME --config KEY=VALUE` and `oncelog topic alter` give a topic its own settings, "
            "which take effect at once. For other settings, the broker's values apply.\n",
            table(("setting", "default", "type", "broker's setting", "what it does"), rows),
        ]
    )


def _default(key: Key) -> str:
    return _LARGEST.get(key.default, plain_text(key.default)) if type(key.default) is int else plain_text(key.default)


def _described(name: str, key: Key) -> str:
    """Return what a setting does: the description of the topic setting with this default, then its own."""
    own = descriptions().get(key.attribute, "")
    for topic, spec in TOPIC_KEYS.items():
        if spec.broker_key == name and not (topic == name and own):
            link = f"Default of the topic setting [{code(topic)}](topic-settings.md#{topic}): {text(spec.doc)}"
            return f"{link} {text(own)}" if own else link
    return text(own)


@cache
def descriptions() -> dict[str, str]:
    """Return the docstring of each field of `BrokerConfig` that has one.

    Python does not keep them, so this reads the source.
    """
    modules = [
        ast.parse(inspect.getsource(each)).body[0]
        for each in (SecuritySettings, QuotaSettings, ConsumerGroupSettings, settings.BrokerConfig)
    ]
    fields = [field for module in modules if isinstance(module, ast.ClassDef) for field in module.body]
    found = {}
    for field, following in itertools.pairwise(fields):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(following, ast.Expr):
            assert isinstance(following.value, ast.Constant)
            found[field.target.id] = " ".join(str(following.value.value).split())
    return found
