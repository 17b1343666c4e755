"""Apache Kafka's own tests of its consumer with `group.protocol=consumer`, on brokers of oncelog.

With ONCELOG_KAFKA_TESTS_OF=all, the longer classes run, too, and the tests of the classic protocol (`scripts/nightly
kafka-tests`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.kafka_tests import run_kafka_tests

ALL = os.environ.get("ONCELOG_KAFKA_TESTS_OF") == "all"

# ConsumerBounceTest restarts the brokers' objects in the JVM. test_consumer_protocol_kills.py kills ours.
CLASSES = (
    "ConsumerIntegrationTest",
    "ConsumerTopicCreationTest",
    "PlaintextConsumerCallbackTest",
    "PlaintextConsumerCloseTest",
    "PlaintextConsumerCommitTest",
    "PlaintextConsumerSubscriptionTest",
)
LONGER = (
    "PlaintextConsumerAssignTest",
    "PlaintextConsumerFetchTest",
    "PlaintextConsumerPollTest",
    "PlaintextConsumerTest",
)

NOT_PASSED = {
    "testAsyncConsumerCloseOnBrokerShutdown": "skipped: it calls the broker's object",
    "testAsyncConsumerQuotaMetricsNotCreatedIfNoQuotasConfigured": "skipped: it reads metrics in the broker's JVM",
    "testClassicConsumerCloseOnBrokerShutdown": "skipped: it calls the broker's object",
    "testClassicConsumerQuotaMetricsNotCreatedIfNoQuotasConfigured": "skipped: it reads metrics in the broker's JVM",
    "testRackAwareAssignment": "skipped: the broker would load a class",
    "testSingleCoordinatorOwnershipAfterPartitionReassignment": "failed: it moves replicas",
}
"""The tests that need what oncelog does not have."""


@pytest.mark.parametrize("name", CLASSES + LONGER * ALL)
def test_consumer_tests_of_kafka(name: str, tmp_path: Path) -> None:
    outcomes = run_kafka_tests(f"consumer.{name}", tmp_path, without="" if ALL else ".*Classic.*")
    assert {test: how for test, how in outcomes.items() if how != "passed"} == {
        test: reason.partition(":")[0] for test, reason in NOT_PASSED.items() if test in outcomes
    }
    assert "passed" in outcomes.values()
