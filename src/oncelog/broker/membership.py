"""What this broker is in its cluster at present."""

from __future__ import annotations

from oncelog.cluster.brokers import BrokerInfo


class Membership:
    """The session and the registration of this broker, which only `Registration` changes, and its cluster."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.cluster_id = ""
        """`ClusterEntry` sets it when the broker enters the cluster."""
        self.login_secret = b""
        """The secret from which the cluster's brokers derive the salts of users that do not exist. Set together with
        the id."""
        self.session = -1
        """The session in the metadata store, or -1 before `Registration.open`."""
        self.info = BrokerInfo(-1)
        """This broker as the others see it. The epoch is -1 until it is registered, and while its session is lost."""

    @property
    def epoch(self) -> int:
        """Return the broker epoch, or -1 if the broker is not registered."""
        return self.info.epoch
