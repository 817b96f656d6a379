"""A removal rule on one partition with three replicas (partitions.removal), one step at a time."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pyarrow as pa
import pytest

from stratalog.engine.replication.removal import members_behind, remove_records
from stratalog.engine.replication.sync import SyncOptions
from stratalog.partitions.errors import RetriableError
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.records import ABORT, ABORTED, COMMIT, GAP
from stratalog.partitions.removal import CommittedRule, Rule
from stratalog.partitions.rewrites.merge import MergePolicy, plan_merges
from stratalog.partitions.rewrites.removing import Removed, RemovingOptions
from stratalog.partitions.rewrites.rewrite import merge_run
from stratalog.partitions.runner import SerialRunner
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.transactions import transactions_of
from tests.unit.harness import OnePartition, batch, sync

SYNC = SyncOptions(copies=SerialRunner())
Row = tuple[bytes | None, bytes | None]


class Keyed(OnePartition):
    """A partition of keyed records, with any rule."""

    def __init__(self, brokers: int) -> None:
        super().__init__(brokers)
        self.change(rules=(CommittedRule(Rule(99, 0), 0),))

    def put(self, rows: Iterable[Row], *, producer: str | None = None, sequence: int = 0, epoch: int = 0) -> int:
        """Append these keys and values, in a transaction of the producer if one is named; returns the next
        offset."""
        rows = list(rows)
        who = ProducerAppend(producer or next(self.ids), epoch, sequence, producer is not None)
        made = batch([value for _, value in rows])
        keys = pa.array([key for key, _ in rows], pa.binary())
        return self.append_as(who, made.set_column(1, "key", keys)).next_offset

    def log(self, broker: int) -> ReplicaLog:
        return self.replicas.replica(broker).log(fresh=True)

    def held(self, broker: int) -> dict[int, tuple[bytes | None, bytes | None, int | None]]:
        """The rows of a replica except gaps: key, value, control, by offset."""
        found = {}
        for link in self.log(broker).chain:
            for part in read_batches(self.stores[broker], link.file, link.start, link.end):
                for row in part.to_pylist():
                    if row["control"] != GAP:
                        found[row["offset"]] = row["key"], row["value"], row["control"]
        return found

    def apply(self, rule: Rule, most: int | None = None) -> Removed:
        options = RemovingOptions(segment_bytes=1, compression="zstd", memory_bytes=10_000, most=most)
        done = remove_records(self.replicas, rule, options, SerialRunner())
        assert not done.missed
        return done.removed

    def names(self, broker: int) -> list[str]:
        return [str(link.name) for link in self.log(broker).chain]


def a_partition() -> Keyed:
    one = Keyed(3)
    one.put([(b"a", b"1"), (b"b", b"1")])
    one.put([(b"a", b"2"), (b"c", None)])
    one.put([(b"b", b"2")])
    one.put([(b"a", b"3")])
    return one


LEFT = {2: (b"a", b"2", None), 3: (b"c", None, None), 4: (b"b", b"2", None), 5: (b"a", b"3", None)}


def test_followers_take_over_the_segments_of_the_leader() -> None:
    one = a_partition()
    assert members_behind(one.replicas, Rule(1, 5)) == [1, 2, 3]
    assert one.apply(Rule(1, 5)).gaps == 2
    assert [one.held(broker) for broker in (1, 2, 3)] == [LEFT] * 3
    assert one.names(1) == one.names(2) == one.names(3)
    assert members_behind(one.replicas, Rule(1, 5)) == []
    assert one.put([(b"d", b"1")]) == 7


def test_a_new_leader_continues_where_the_old_one_stopped() -> None:
    """The rule is in the metadata, so the new leader makes the missing files itself, byte for byte."""
    one = a_partition()
    one.apply(Rule(1, 5), most=1)
    other = a_partition()
    other.apply(Rule(1, 5))
    one.elect(2)
    assert one.held(2).items() > LEFT.items() or one.held(2) == LEFT
    one.apply(Rule(1, 5))
    assert [one.held(broker) for broker in (1, 2, 3)] == [LEFT] * 3
    for name in (name for name in one.names(2) if name.count(".") == 3):
        path = one.replicas.replica(2).path(name)
        mine = one.stores[2].read(path)
        assert mine == one.stores[1].read(one.replicas.replica(1).path(name))


def test_a_follower_that_was_away_is_stale_and_nothing_else() -> None:
    """The follower holds more, is updated by the next sync, and no check calls it damaged."""
    one = a_partition()
    one.change(isr=(1, 2))
    one.apply(Rule(1, 5))
    assert set(one.held(3)) > set(LEFT)
    assert sync(one.replicas, 3, SYNC).copied_files == 3
    assert one.held(3) == LEFT
    assert sync(one.replicas, 3, SYNC).copied_files == 0


def test_a_follower_ahead_of_an_elected_leader_keeps_what_it_has() -> None:
    """Followers hold the greater generation: its segments replace the leader's files, which they do not need."""
    one = a_partition()
    one.change(isr=(1, 2))
    one.apply(Rule(1, 5))
    one.change(isr=(1, 2, 3))  # the metadata added the replica before it was up to date
    one.elect(3)
    assert sync(one.replicas, 1, SYNC).copied_files == 0
    assert one.held(1) == LEFT
    one.apply(Rule(1, 5))
    assert [one.held(broker) for broker in (1, 2, 3)] == [LEFT] * 3


def test_a_zombie_that_merges_on_a_follower_or_the_leader_brings_nothing_back() -> None:
    one = a_partition()
    policy = MergePolicy(segment_bytes=10**9, segment_ms=1, min_files=2)
    runs = {broker: plan_merges(one.log(broker), policy, 0, 10**12) for broker in (1, 2)}
    one.apply(Rule(1, 5))
    for broker, (run,) in runs.items():
        replica = one.replicas.replica(broker)
        with pytest.raises(Exception, match="left the log"):
            merge_run(replica, run, compression="zstd")
        assert one.held(broker) == LEFT


def transactional() -> Keyed:
    one = Keyed(3)
    one.put([(b"a", b"1"), (b"b", b"1")])
    one.put([(b"a", b"2")], producer="x")  # 2, committed
    one.put([(b"b", b"lost")], producer="y")  # 3, aborted
    one.end("x", 1, commit=True)  # 4
    one.end("y", 1, commit=False)  # 5
    one.put([(b"c", b"1")])  # 6
    one.put([(b"c", b"open")], producer="z")  # 7
    one.put([(b"c", b"2")])  # 8
    return one


def test_records_of_aborted_transactions_and_markers_leave_and_supersede_nothing() -> None:
    one = transactional()
    log = one.log(1)
    stable = transactions_of(log, one.replicas.leader.footer).last_stable_offset
    assert stable == 7
    with pytest.raises(RetriableError, match="last stable offset 7"):
        one.apply(Rule(1, 8))
    one.apply(Rule(1, 7))
    for broker in (1, 2, 3):
        held = one.held(broker)
        assert {at: row for at, row in held.items() if at < 7} == {
            1: (b"b", b"1", None),
            2: (b"a", b"2", None),
            6: (b"c", b"1", None),
        }
        assert set(held) == {1, 2, 6, 7, 8}
    assert not {ABORT, COMMIT, ABORTED} & {control for *_, control in one.held(1).values()}


def test_an_open_transaction_is_decided_as_without_the_rule() -> None:
    one = transactional()
    one.apply(Rule(1, 7))
    before = transactions_of(one.log(2), one.replicas.replica(2).footer)
    assert before.last_stable_offset == 7
    one.end("z", 1, commit=True)
    after = transactions_of(one.log(2), one.replicas.replica(2).footer)
    assert after.last_stable_offset == 10
    state = one.replicas.leader.producers(one.log(1))
    assert {"x", "y", "z"} <= set(state)


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(25))
def test_any_order_of_appends_rules_elections_and_syncs(seed: int) -> None:
    """After each step every copy has, below the bound, the last record of each key, and files of equal generations
    have equal bytes.
    """
    chosen, one = random.Random(seed), Keyed(3)
    given: list[Row] = []
    rules = [Rule(0, 0)]
    for _ in range(30):
        match chosen.randrange(6):
            case 0 | 1 | 2:
                rows = [
                    (chosen.choice([b"a", b"b", b"c", b"d"]), chosen.choice([None, b"1", b"2", b"3"]))
                    for _ in range(chosen.randint(1, 3))
                ]
                given += rows
                one.put(rows)
            case 3 if given and not members_behind(one.replicas, rules[-1]):
                ends = [0, *(link.end for link in one.log(one.view.leader or 0).chain)]
                bound = chosen.choice([end for end in ends if end >= rules[-1].bound])
                rules.append(Rule(len(rules), bound, chosen.choice([r.bound for r in rules])))
                before = max(rule.tombstones_before for rule in rules)
                rules[-1] = Rule(rules[-1].generation, bound, before)
            case 4 if rules[-1].bound:
                one.apply(rules[-1], most=chosen.choice([1, 2, None]))
            case 5:
                one.elect(chosen.choice([1, 2, 3]))
        rule = rules[-1]
        last = {key: at for at, (key, _) in enumerate(given[: rule.bound])}
        kept = {at: given[at] for at in last.values() if given[at][1] is not None or at >= rule.tombstones_before}
        files: dict[str, bytes] = {}
        for broker in (1, 2, 3):
            if not given:
                continue
            held = {at: (key, value) for at, (key, value, _) in one.held(broker).items()}
            assert {at: row for at, row in kept.items() if at < one.log(broker).log_end}.items() <= held.items()
            assert all(given[at] == row for at, row in held.items())
            for name in one.names(broker):
                data = one.stores[broker].read(one.replicas.replica(broker).path(name))
                assert files.setdefault(name, data) == data
