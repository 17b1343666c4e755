"""Our consumer and its group's session timeout, on a server that allows short ones."""

from __future__ import annotations

from oncelog import Admin
from support.groups import stable
from support.processes import wait_until
from support.rebalances import CLASSIC, members, settle
from support.servers import Server

SETTINGS = {"group.min.session.timeout.ms": "500"}
SESSION_S = 3.0


def test_member_stays_alive_until_the_user_polls_its_assignment(module_server: Server, name: str) -> None:
    """The member has joined in the background, and the user polls only after the session's time."""
    options = CLASSIC | {"session_timeout_ms": round(SESSION_S * 1000)}
    with (
        Admin(module_server.bootstrap) as admin,
        members(module_server.bootstrap, name, 1, **options) as (member,),
    ):
        admin.create_topics(name, 2)
        member.subscribe([name])
        member.consumer.poll(0)
        wait_until(lambda: admin.describe_group(name).state == "Stable", "the member has joined")
        before = admin.describe_group(name).members
        # The session's time has passed once a silent member of another group is removed.
        (silent,) = stable(module_server.bootstrap, f"{name}-silent", 1, session_timeout_ms=round(SESSION_S * 1000))
        wait_until(lambda: not admin.describe_group(silent.group).members, "the silent member is removed")
        silent.close()
        assert admin.describe_group(name).members == before
        settle([member], [(name, 0), (name, 1)])
