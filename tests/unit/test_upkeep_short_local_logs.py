"""Replicas with a short local log are elected last, by option (KIP-1023, "Motivation")."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.upkeep.replication.candidates import (
    Candidate,
    Candidates,
    CandidateWork,
    has_short_local_log,
    list_candidates,
    short_local_logs_last,
)
from tests.unit.cluster_harness import LiveCluster, rows_of
from tests.unit.test_upkeep_bootstrap import LAST_TIERED
from tests.unit.test_upkeep_bootstrap_ways import ALWAYS

THIN_LAST = "leader.election.short.local.log.last.enable"


@pytest.mark.parametrize(
    ("held", "others", "short"),
    [(4, [10], True), (5, [10], False), (0, [0], False), (0, [1], True), (7, [], False), (10, [10, 2], False)],
)
def test_short_is_less_than_half_of_what_another_one_holds(held: int, others: list[int], short: bool) -> None:
    assert has_short_local_log(held, others) == short


def test_thin_replicas_come_last_in_their_previous_order() -> None:
    assert short_local_logs_last([1, 2, 3, 4], {1: 2, 2: 100, 3: 1, 4: 60}) == [2, 4, 1, 3]
    assert short_local_logs_last([1, 2], {1: 2}) == [1, 2]
    assert short_local_logs_last([3, 1], {3: 1, 1: 1}) == [3, 1]


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Topic ``t`` on brokers 2 and 3; the preferred one lost its disk, and returned with a short local log: it
    holds [6, 8) of [0, 8)."""
    made = LiveCluster(tmp_path, brokers=3)
    made.cluster.brokers.fence(1).raise_for_failures()
    made.tiered(copies=2, local_retention_bytes="-1")
    made.fill("abcdef")
    made.cluster.tier().raise_for_failures()
    made.fill("gh")
    made.cluster.topics.alter_configs(None, {LAST_TIERED: "true", ALWAYS: "true"})
    preferred = made.replicas().view.replicas[0]
    made.wipe(preferred)
    made.cluster.bootstrap(preferred).raise_for_failures()
    assert made.leader() != preferred
    assert made.isr() == {2, 3}
    return made


def test_without_the_option_the_preferred_replica_leads_again_however_thin(live: LiveCluster) -> None:
    live.cluster.elect().raise_for_failures()
    assert live.leader() == live.replicas().view.replicas[0]


def test_with_the_option_a_thin_preferred_replica_does_not_lead_again(live: LiveCluster) -> None:
    live.cluster.topics.alter_configs("t", {THIN_LAST: "true"})
    with live.unchanged():
        assert rows_of(live.cluster.elect(), "leader") == []


def test_a_thin_leader_gives_way_to_a_full_replica(live: LiveCluster) -> None:
    """The thin leader leads because the metadata, which does not know the storage, selected the
    preferred replica.
    """
    preferred, full = live.replicas().view.replicas
    live.cluster.elect(leader=preferred).raise_for_failures()
    live.cluster.topics.alter_configs("t", {THIN_LAST: "true"})
    assert rows_of(live.cluster.elect(), "leader_before", "leader") == [(preferred, full)]


def test_by_name_a_thin_replica_leads_all_the_same(live: LiveCluster) -> None:
    live.cluster.topics.alter_configs("t", {THIN_LAST: "true"})
    preferred = live.replicas().view.replicas[0]
    live.cluster.elect(leader=preferred).raise_for_failures()
    assert live.leader() == preferred


@pytest.mark.slow
def test_once_it_is_not_thin_any_more_it_leads_again(live: LiveCluster) -> None:
    live.cluster.topics.alter_configs("t", {THIN_LAST: "true"})
    live.fill("ijklmnop")
    live.cluster.elect().raise_for_failures()
    assert live.leader() == live.replicas().view.replicas[0]


def test_among_equals_an_unclean_election_takes_a_thin_replica_last(live: LiveCluster) -> None:
    """Equal replicas end at the same offset, under the same epoch; a replica with a greater end comes first,
    however short its log is.
    """
    replicas = live.replicas()
    able = (Candidate(2, 1, 8, 2), Candidate(3, 1, 8, 8), Candidate(4, 1, 7, 7))
    assert Candidates(able, (), 8).best(replicas).broker_id == 2
    assert Candidates(able, (), 8).best(replicas, short_local_logs_last=True).broker_id == 3
    assert (
        Candidates((*able, Candidate(5, 1, 9, 1)), (), 8).best(replicas, short_local_logs_last=True).broker_id == 5
    )
    assert Candidates(able, (), 8).best(replicas, 2, short_local_logs_last=True).broker_id == 2


def test_the_local_records_of_each_candidate_are_counted(live: LiveCluster) -> None:
    found = list_candidates(CandidateWork(live.replicas(), None, snapshots=False))
    short, full = live.replicas().view.replicas
    assert {one.broker_id: one.held for one in found.able} == {short: 2, full: 8}
