"""The stories by number, and how one is run."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import NamedTuple

from oncelog.stories.stage import Outcome, Stage


class Story(NamedTuple):
    """A story: what goes wrong, its cure, and the function that runs it."""

    title: str
    cure: str
    place: str
    """module:function in this package."""
    own_brokers: bool = False
    """Whether it kills or pauses brokers, so that it always starts its own."""

    @property
    def run(self) -> Callable[[Stage, bool], Outcome]:
        """The function. It gets the stage, and whether to apply the cure."""
        module, _, name = self.place.partition(":")
        found: Callable[[Stage, bool], Outcome] = getattr(importlib.import_module(f"oncelog.stories.{module}"), name)
        return found

    @property
    def instead(self) -> str:
        """What the story runs on instead of the brokers that the user gives, or ""."""
        if self.own_brokers:
            return "it kills brokers, so it starts its own"
        return "it needs no broker" if self.place.startswith("inside:") else ""

    @property
    def text(self) -> str:
        """What happens, and what helps."""
        return inspect.getdoc(self.run) or ""


IDEMPOTENCE = "idempotence"
ONE_TRANSACTION = "output and position in one transaction"

STORIES: dict[int, Story] = {
    1: Story("the answer is lost, and the producer sends again", IDEMPOTENCE, "retries:lost_answer"),
    2: Story("the leader dies before its answer", "sequences in the log", "brokers:dead_leader", True),
    3: Story("an error without a retry", "retries with idempotence", "retries:no_retry"),
    4: Story("acks=0 does not notice a lost request", "acks=all", "retries:no_acknowledgement"),
    5: Story("acks=1, and the leader dies", "acks=all", "brokers:leader_alone", True),
    6: Story("an unclean election", "unclean.leader.election.enable=false", "brokers:unclean_election", True),
    7: Story("only the leader is in sync", "min.insync.replicas=2", "brokers:one_in_sync_replica", True),
    8: Story("an error after the append, and a retry", IDEMPOTENCE, "retries:late_error"),
    9: Story("a permanent error is ignored", "keep what cannot be sent", "retries:ignored_error"),
    10: Story("a consumer dies before its commit", "position in the database", "consumers:died_before_commit"),
    11: Story("the position is committed before the output", ONE_TRANSACTION, "consumers:offset_first"),
    12: Story("the output is written before the position", ONE_TRANSACTION, "consumers:output_first"),
    13: Story("an operator seeks back", "the application remembers ids", "consumers:seek_back"),
    14: Story("a producer starts again, with a new id", ONE_TRANSACTION, "transactions:new_producer_id"),
    15: Story("a crash between two partitions", "a transaction, read_committed", "transactions:torn_pair"),
    16: Story("a retry arrives behind later batches", IDEMPOTENCE, "retries:overtaken"),
    17: Story("the second of five batches fails", "the queue is ordered by sequence", "retries:requeued"),
    18: Story("six batches in flight", "at most five", "sequences:six_in_flight"),
    19: Story("a batch expires, and leaves a hole", "a new epoch", "sequences:hole"),
    20: Story("the broker has forgotten the producer", "a new epoch (KIP-360)", "sequences:forgotten_producer"),
    21: Story("a zombie producer", "one transactional id, epochs", "transactions:zombie_producer"),
    22: Story("a zombie consumer", "the generation in the transaction", "consumers:zombie_consumer"),
    23: Story("a producer dies in its transaction", "a successor with its id", "transactions:open_transaction"),
    24: Story("the coordinator dies after its decision", "its successor", "brokers:dead_coordinator", True),
    25: Story("state outside of the transaction", "state in the transaction", "consumers:outside_state"),
    26: Story("a replica that joins is not counted", "the leader counts it", "inside:joining_replica"),
    27: Story("two brokers reserve the same producer ids", "compare and set", "inside:racing_brokers"),
    28: Story("the sequence numbers end", "0 follows 2^31-1", "sequences:largest_sequence"),
    29: Story("several producers in one partition", "one producer", "retries:several_producers"),
    30: Story("every reader removes the same duplicate", IDEMPOTENCE, "retries:everybody_removes_duplicates"),
}


class Shown(NamedTuple):
    """How the two runs of a story ended."""

    without: Outcome
    with_cure: Outcome

    @property
    def as_told(self) -> bool:
        """Whether it went wrong without its cure, and right with it."""
        return not self.without.right and self.with_cure.right


def show(number: int, say: Callable[[str], None], bootstrap: str = "") -> Shown:
    """Run a story without its cure, then with it, and say each step.

    `bootstrap` has the brokers to use, unless the story needs its own.
    """
    story = STORIES[number]
    say(f"{number}. {story.title}")
    say("")
    for line in story.text.splitlines():
        say(line)
    outcomes = []
    for cure in (False, True):
        say("")
        say(f"With the cure ({story.cure}):" if cure else "Without the cure:")
        with Stage(lambda text: say(f"  {text}"), "" if story.own_brokers else bootstrap) as stage:
            outcome = story.run(stage, cure)
        say(f"  => {'right' if outcome.right else 'WRONG'}: {outcome.text}")
        outcomes.append(outcome)
    return Shown(*outcomes)
