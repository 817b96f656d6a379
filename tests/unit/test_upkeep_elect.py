"""Elections on a whole cluster: leaders distributed again, by hand, and unclean ones with their losses."""

from __future__ import annotations

import pytest

from stratalog.engine.upkeep.replication.elect import elect_uncleanly_where_allowed
from stratalog.partitions.errors import InvalidCallError, UnknownBrokerError, UnknownTopicOrPartitionError
from stratalog.partitions.paths import LocalStartName
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, codes, fence, rows_of, the_failure, unfence


def leaders(live: LiveCluster, topic: str = "t") -> list[int | None]:
    return [partition.leader for partition in live.cluster.image.topic(topic).partitions]


def preferred(live: LiveCluster, topic: str = "t") -> list[int]:
    return [partition.replicas[0] for partition in live.cluster.image.topic(topic).partitions]


def last_member(live: LiveCluster, topic: str = "t", partition: int = 0) -> int:
    """Fence all other brokers, so that the leader is the whole ISR."""
    leader = live.leader(topic, partition)
    fence(live, *(b for b in live.replicas(topic, partition).view.replicas if b != leader))
    return leader


# ---------------------------------------------------------------------------------- preferred


def test_leaders_are_spread_again_once_a_broker_is_back(live: LiveCluster) -> None:
    """Protocol, section 4, Elect: "the preferred replica first"; one commit, and a new epoch each."""
    live.topic(partitions=6)
    live.append({p: [f"a{p}"] for p in range(6)}).raise_for_failures()
    fence(live, 2)
    assert 2 not in leaders(live)
    live.append({p: [f"b{p}"] for p in range(6)}).raise_for_failures()
    unfence(live, 2)
    live.cluster.replicate().raise_for_failures()
    before = live.cluster.image
    lost = [p for p in range(6) if preferred(live)[p] == 2]
    report = live.cluster.elect()
    assert [(p, a, b) for p, a, b in rows_of(report, "partition", "leader_before", "leader")] == [
        (p, before.topic("t").partitions[p].leader, 2) for p in lost
    ]
    assert rows_of(report, "leader_epoch") == [(before.topic("t").partitions[p].leader_epoch + 1,) for p in lost]
    assert leaders(live) == preferred(live)
    live.append({p: [f"c{p}"] for p in range(6)}).raise_for_failures()
    assert live.read() == {p: [f"a{p}", f"b{p}", f"c{p}"] for p in range(6)}


def test_if_all_preferred_replicas_lead_nothing_is_committed(live: LiveCluster) -> None:
    live.topic(partitions=3)
    live.cluster.replicate()
    with live.unchanged():
        assert live.cluster.elect().raise_for_failures().rows == []


def test_a_preferred_replica_that_cannot_lead_is_one_failure_and_the_others_continue(live: LiveCluster) -> None:
    """Bad input: an election without a candidate is one clear error, and other partitions continue."""
    live.topic(partitions=6)
    fence(live, 2, 3)
    unfence(live, 2)
    live.cluster.replicate().raise_for_failures()
    report = live.cluster.elect(check=False)
    wanted = preferred(live)
    assert codes(report) == {"PREFERRED_LEADER_NOT_AVAILABLE": wanted.count(3)}
    assert all("broker 3, is fenced or not in the ISR" in failure.message for failure in report.failures)
    assert [p for p in range(6) if leaders(live)[p] == wanted[p]] == [p for p in range(6) if wanted[p] != 3]


def test_only_the_named_topics_and_partitions_are_elected(live: LiveCluster) -> None:
    live.topic("t", partitions=3)
    live.topic("u", partitions=3)
    fence(live, 1)
    unfence(live, 1)
    fence(live, 2)
    unfence(live, 2)
    fence(live, 3)
    unfence(live, 3)
    live.cluster.replicate().raise_for_failures()
    wrong = [p for p in range(3) if leaders(live, "u")[p] != preferred(live, "u")[p]]
    before = leaders(live, "t")
    assert rows_of(live.cluster.elect("u", [wrong[0]]), "topic", "partition") == [("u", wrong[0])]
    assert [p for p in range(3) if leaders(live, "u")[p] != preferred(live, "u")[p]] == wrong[1:]
    live.cluster.elect("u").raise_for_failures()
    assert (leaders(live, "u"), leaders(live, "t")) == (preferred(live, "u"), before)


def test_a_dry_run_shows_who_would_lead_and_changes_nothing(live: LiveCluster) -> None:
    live.topic(partitions=3)
    fence(live, 1)
    unfence(live, 1)
    live.cluster.replicate().raise_for_failures()
    with live.unchanged():
        report = live.cluster.elect(dry_run=True)
    assert report.dry_run
    assert rows_of(report, "leader") == [(1,)]
    again = live.cluster.elect()
    assert rows_of(again, "leader", "leader_epoch") == rows_of(report, "leader", "leader_epoch")


# ------------------------------------------------------------------------------------ by hand


def test_a_member_of_the_isr_can_be_elected_by_hand(live: LiveCluster) -> None:
    live.topic()
    live.append(["a"]).raise_for_failures()
    other = live.followers()[0]
    live.cluster.elect("t", leader=other).raise_for_failures()
    assert live.leader() == other
    live.append(["b"]).raise_for_failures()
    assert live.read() == {0: ["a", "b"]}


def test_a_replica_outside_the_isr_is_not_elected_cleanly(live: LiveCluster) -> None:
    live.topic()
    other = live.followers()[0]
    fence(live, other)
    failure = the_failure(live.cluster.elect("t", leader=other, check=False))
    assert failure.startswith("t-0: ELIGIBLE_LEADERS_NOT_AVAILABLE: ")
    assert "only an unclean election" in failure


def test_an_error_in_the_call_changes_nothing(live: LiveCluster) -> None:
    live.topic(copies=2)
    without = ({1, 2, 3} - {*live.replicas().view.replicas}).pop()
    with live.unchanged():
        with pytest.raises(UnknownTopicOrPartitionError, match="'u' does not exist"):
            live.cluster.elect("u")
        with pytest.raises(UnknownTopicOrPartitionError, match="no partition 7"):
            live.cluster.elect("t", [7])
        with pytest.raises(UnknownBrokerError, match="broker 9"):
            live.cluster.elect("t", leader=9)
        with pytest.raises(InvalidCallError, match="name the topic of"):
            live.cluster.elect(partitions=[0])
        with pytest.raises(InvalidCallError, match="has no replica of topic t"):
            live.cluster.elect("t", leader=without)


# ------------------------------------------------------------------------------------ unclean


def outdated(live: LiveCluster, topic: str = "t") -> tuple[int, list[int]]:
    """The followers lack "b", which only the leader acknowledged, and the leader is gone. Returns the leader and
    the followers; the followers are reachable.
    """
    live.append(["a"], topic).raise_for_failures()
    leader = last_member(live, topic)
    live.append(["b", "c"], topic).raise_for_failures()
    fence(live, leader)
    others = [b for b in live.replicas(topic).view.replicas if b != leader]
    unfence(live, *others)
    assert live.replicas(topic).view.leader is None
    return leader, others


def test_the_last_member_of_the_isr_is_gone_and_a_clean_election_says_what_can_be_done(live: LiveCluster) -> None:
    live.topic()
    outdated(live)
    failure = the_failure(live.cluster.elect(check=False))
    assert "the partition has no leader: bring back a broker of its ISR, or run elect --unclean" in failure


def test_an_unclean_election_takes_the_replica_that_holds_most_and_shows_what_is_lost(live: LiveCluster) -> None:
    """There are two replicas outside the ISR, and one has more records of the last epoch: it leads, and the other
    follows.
    """
    live.topic()
    leader = live.leader()
    behind, ahead = live.followers()
    live.append(["a"]).raise_for_failures()
    fence(live, behind)
    live.append(["b"]).raise_for_failures()
    fence(live, ahead)
    live.append(["c"]).raise_for_failures()
    fence(live, leader)
    unfence(live, behind, ahead)
    with live.unchanged():
        plan = live.cluster.elect(unclean=True, dry_run=True)
    assert rows_of(plan, "leader_before", "leader", "lost_records_at_least") == [(None, ahead, None)]
    report = live.cluster.elect("t", unclean=True)
    assert rows_of(report, "leader", "leader_epoch") == rows_of(plan, "leader", "leader_epoch")
    note = report.notes[-1]
    assert f"loses all records held only by broker(s) {leader}," in note
    assert "the number of lost records is unknown" in note
    assert report.totals == {"elected": 1, "lost_records_at_least": None}
    assert live.isr() == {ahead}
    live.append(["d"]).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: ["a", "b", "d"]}
    unfence(live, leader)  # the records that only this broker has are dead: it follows
    live.cluster.replicate().raise_for_failures()
    assert live.isr() == {1, 2, 3}
    assert live.data(1) == live.data(2) == live.data(3)


def test_lost_records_are_counted_by_the_high_watermark_that_any_replica_knows(live: LiveCluster) -> None:
    """A later epoch beats a longer log: records that only the longer one has are lost, and counted."""
    live.topic()
    one, two, three = live.replicas().view.replicas
    live.append(["a"]).raise_for_failures()
    fence(live, two, three)
    live.append(["b", "c", "d"]).raise_for_failures()  # only ``one`` has them
    fence(live, one)
    unfence(live, two, three)
    live.cluster.elect(unclean=True, leader=two).raise_for_failures()
    live.append(["e"]).raise_for_failures()  # the records have a later epoch
    live.cluster.replicate().raise_for_failures()
    fence(live, three)
    live.append(["f"]).raise_for_failures()  # only ``two`` has it
    fence(live, two)
    unfence(live, one, three)
    report = live.cluster.elect(unclean=True, dry_run=True)
    assert rows_of(report, "leader", "lost_records_at_least") == [(three, 2)]
    report = live.cluster.elect(unclean=True)
    assert rows_of(report, "leader", "lost_records_at_least") == [(three, 2)]
    assert "loses at least 2 acknowledged records and all records held only by broker" in report.notes[-1]
    live.append(["g"]).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: ["a", "e", "g"]}


def test_nothing_is_elected_uncleanly_if_another_replica_leads(live: LiveCluster) -> None:
    live.topic(partitions=3)
    with live.unchanged():
        assert live.cluster.elect(unclean=True).raise_for_failures().rows == []


def test_without_any_replica_that_could_lead_the_partition_fails_and_says_why(live: LiveCluster) -> None:
    live.topic("t", copies=1)
    live.topic("u")
    only = live.leader("t")
    live.append(["a"], "u").raise_for_failures()
    fence(live, *(b for b in (1, 2, 3) if b != only), only)  # ``only`` is the last ISR member of both topics
    unfence(live, *(b for b in (1, 2, 3) if b != only))
    report = live.cluster.elect(unclean=True, check=False)
    assert [(row["topic"], row["leader_before"]) for row in report.rows] == [("u", None)]
    failure = the_failure(report)
    assert failure.startswith("t-0: ELIGIBLE_LEADERS_NOT_AVAILABLE: ")
    assert f"broker {only} is fenced" in failure


def test_a_replica_that_has_lost_what_it_promised_is_no_candidate(live: LiveCluster) -> None:
    live.topic()
    leader, (one, two) = outdated(live)
    store = live.store(one)
    store.delete([link.file.object.name for link in live.log(one).chain])
    report = live.cluster.elect(unclean=True)
    assert rows_of(report, "leader") == [(two,)]
    fence(live, two)
    failure = the_failure(live.cluster.elect("t", unclean=True, check=False))
    assert "ELIGIBLE_LEADERS_NOT_AVAILABLE" in failure
    assert f"broker {one} cannot lead (" in failure
    assert f"broker {leader} is fenced" in failure


def test_a_chosen_broker_leads_uncleanly_only_as_a_replica(live: LiveCluster) -> None:
    live.topic(copies=3)
    _, (one, two) = outdated(live)
    assert rows_of(live.cluster.elect("t", [0], unclean=True, leader=two), "leader") == [(two,)]
    assert one in live.followers()


def test_a_run_elects_uncleanly_by_itself_only_where_the_topic_allows_it(live: LiveCluster) -> None:
    """``unclean.leader.election.enable``, false by default."""
    live.topic("allowed", unclean_leader_election_enable="true")
    live.topic("forbidden")
    live.append(["a"], "allowed").raise_for_failures()
    live.append(["a"], "forbidden").raise_for_failures()
    outdated(live, "allowed")
    ports = ports_of(live.cluster)
    # Every broker has been away in the meantime; this does not change the leader of "forbidden".
    before = live.cluster.image
    image, notes = elect_uncleanly_where_allowed(ports.metadata, ports.storage, ports.execution, before)
    (note,) = notes
    assert note.startswith("allowed-0: unclean election of broker ")
    # The lost records are "b" and "c": the note does not say 0.
    assert "the number of lost records is unknown" in note
    assert image.topic("allowed").partitions[0].leader is not None
    assert image.topic("forbidden") == before.topic("forbidden")
    assert elect_uncleanly_where_allowed(ports.metadata, ports.storage, ports.execution, image) == (image, ())


# --------------------------------------------------------------------- unclean, and tiered


def test_an_unclean_election_loses_no_tiered_record_and_reuses_no_tiered_offset(live: LiveCluster) -> None:
    """KIP-405: the remote log has the records that the new leader lacks, so the log continues at its end."""
    live.tiered()
    live.fill("ab")
    leader = last_member(live)
    live.fill("cdef")
    live.cluster.tier().raise_for_failures()
    live.append(["lost"]).raise_for_failures()
    fence(live, leader)
    behind = [b for b in live.replicas().view.replicas if b != leader]
    unfence(live, *behind)
    with live.unchanged():
        plan = live.cluster.elect(unclean=True, dry_run=True)
    assert rows_of(plan, "lost_records_at_least") == [(None,)]
    assert plan.totals["lost_records_at_least"] is None
    report = live.cluster.elect(unclean=True).raise_for_failures()
    assert "restarts at offset 6. " in report.notes[-1]
    live.append(["x"]).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: [*"abcdef", "x"]}
    unfence(live, leader)
    live.cluster.replicate().raise_for_failures()
    assert live.isr() == {1, 2, 3}
    live.cluster.tier().raise_for_failures()
    assert live.read() == {0: [*"abcdef", "x"]}


@pytest.mark.slow
def test_a_divergent_replica_first_takes_the_history_of_the_remote(live: LiveCluster) -> None:
    """The replica's records differ from the tiered ones at the same offsets; the tiered ones were acknowledged."""
    live.tiered()
    one, two, three = live.replicas().view.replicas
    live.fill("ab")
    fence(live, three)
    live.append(["lost", "lost too"], acks="leader").raise_for_failures()
    fence(live, one)  # ``two`` leads, without the records that only ``one`` has
    assert live.leader() == two
    live.fill("cdef")
    live.cluster.tier().raise_for_failures()
    fence(live, two)
    unfence(live, one)
    assert live.replicas().view.leader is None
    live.cluster.elect(unclean=True).raise_for_failures()
    assert live.leader() == one
    live.append(["x"]).raise_for_failures()
    unfence(live, two, three)
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: [*"abcdef", "x"]}
    assert live.isr() == {1, 2, 3}


def test_a_replica_below_the_log_start_begins_there(live: LiveCluster) -> None:
    """Offsets below the log start are never assigned again."""
    live.topic(segment_bytes="1", file_delete_delay_ms="0", retention_bytes="-1")
    live.fill("ab")
    leader = last_member(live)
    live.fill("cdef")
    live.cluster.topics.alter_configs("t", {"retention.bytes": "1", "local.retention.bytes": "1"})
    live.cluster.retain().raise_for_failures()
    log_start = live.replicas().view.log_start_offset
    assert log_start == 5
    fence(live, leader)
    behind = [b for b in live.replicas().view.replicas if b != leader]
    unfence(live, *behind)
    live.cluster.elect(unclean=True).raise_for_failures()
    assert str(LocalStartName(5)) in {str(name) for name, _ in live.log(live.leader()).listing.local_starts}
    live.append(["x"]).raise_for_failures()
    assert live.read() == {0: ["x"]}
