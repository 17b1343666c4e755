"""The secret from which all brokers of a cluster derive the salts of SCRAM users that do not exist.

The salt of a known user stays. If that of an unknown one changed, with a restart or from broker to broker, a stranger
could tell the two apart. So the secret is made once and kept in the tree, which only the brokers' owner can read. If
the tree is lost, then so are the salts of the known users.
"""

from __future__ import annotations

from contextlib import suppress

from oncelog.cluster.store import BadVersionError, MetadataStore, NodeExistsError

PATH = "/oncelog/login_secret"
SECRET_BYTES = 32


def login_secret(store: MetadataStore, proposal: bytes) -> bytes:
    """Return the secret of the cluster. If it has none, or a damaged one, that is `proposal` from now on. Blocks.

    If several brokers propose one at the same time, all of them get the same.
    """
    with suppress(NodeExistsError):
        if not store.exists(PATH):
            store.create(PATH, proposal)
    found = store.get(PATH)
    if len(found.data) != SECRET_BYTES:
        with suppress(BadVersionError):
            store.set(PATH, proposal, found.version)
        found = store.get(PATH)
    return found.data
