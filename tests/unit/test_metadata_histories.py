"""Random histories of all commands: the invariants hold after each, and every way to fold them gives one
result."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import PartitionChangeRecord, TopicRecord
from tests.unit.metadata_histories import random_history


@pytest.mark.slow
@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_a_fold_in_one_go_equals_a_fold_in_steps(seed: int, cuts: list[int]) -> None:
    """This includes deleting a topic and creating another one of the same name with other configs."""
    history = random_history(random.Random(seed), 120)
    records = history.records
    at_once = apply(ClusterImage(), 0, records)
    in_steps = ClusterImage()
    bounds = sorted({0, *(min(cut, len(records)) for cut in cuts), len(records)})
    for start, end in pairwise(bounds):
        in_steps = apply(in_steps, start, records[start:end])
    assert at_once == in_steps == history.image


EVENTS = {
    "storage lost",
    "removed by force",
    "lost and back",
    "unclean",
    "reassigned",
    "completed",
    "recreated",
    "grown",
    "AlterTopic: INVALID_REQUEST",
    "adding",
    "AlterPartition: FENCED_LEADER_EPOCH",
    "AlterPartition: INVALID_UPDATE_VERSION",
    "AlterPartition: INELIGIBLE_REPLICA",
    "AlterPartition: INVALID_REQUEST",
    "AlterPartitionReassignments: INVALID_REPLICA_ASSIGNMENT",
    "AlterPartitionReassignments: INVALID_UPDATE_VERSION",
    "AlterPartitionReassignments: NO_REASSIGNMENT_IN_PROGRESS",
    "AlterPartitionReassignments: BROKER_ID_NOT_REGISTERED",
    "ElectLeaders: ELECTION_NOT_NEEDED",
    "ElectLeaders: ELIGIBLE_LEADERS_NOT_AVAILABLE",
    "ElectLeaders: INVALID_REQUEST",
    "ElectLeaders: PREFERRED_LEADER_NOT_AVAILABLE",
    "FenceBroker: STALE_BROKER_EPOCH",
    "UnregisterBroker: INVALID_REQUEST",
}


@pytest.mark.slow
def test_the_random_histories_reach_the_intended_states() -> None:
    """A proof that cannot fail proves nothing."""
    reached: dict[str, int] = dict.fromkeys(EVENTS, 0)
    for seed in range(150):
        history = random_history(random.Random(seed), 120)
        created = [record.name for record in history.records if isinstance(record, TopicRecord)]
        changes = [record for record in history.records if isinstance(record, PartitionChangeRecord)]
        seen = history.seen
        seen |= {"recreated"} if len(created) > len(set(created)) else set()
        seen |= {"adding"} if any(record.adding for record in changes) else set()
        for event in seen & EVENTS:
            reached[event] += 1
    assert min(reached.values()) >= 5, reached
