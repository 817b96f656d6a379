"""Transactions in a log: last stable offset, outcomes, the records of readers, and the decisions of merges
(KIP-98, KIP-890).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pytest

from stratalog.partitions.errors import InvalidProducerEpochError
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.listing import DataFile, ReplicaLog
from stratalog.partitions.paths import LocalStartName
from stratalog.partitions.producers import (
    ProducerAppend,
    ProducerEntry,
    after_append,
    decode,
    encode,
    marker,
    unexpired,
)
from stratalog.partitions.register import sealed
from stratalog.partitions.replica import Replica
from stratalog.partitions.rewrites.merge import MergePolicy, Run, plan_merges, sealed_runs
from stratalog.partitions.rewrites.rewrite import merge_run
from stratalog.partitions.segments.footer import SegmentFooter, encode_footer
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.transactions import Fate, LogTransactions, transactions_of
from tests.unit.harness import OnePartition
from tests.unit.seen import seen

COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
ALL = MergePolicy(segment_bytes=10**12, segment_ms=0, min_files=2)
"""Everything that may be merged is one sealed run."""
EACH = MergePolicy(segment_bytes=1, segment_ms=10**15, min_files=2)
"""Every file is large, and sealed alone."""


class Log(OnePartition):
    """One replica of one partition, and the records of its readers."""

    def __init__(self) -> None:
        super().__init__(brokers=1)

    @property
    def replica(self) -> Replica:
        return self.replicas.leader

    @property
    def log(self) -> ReplicaLog:
        return self.replica.log()

    @property
    def transactions(self) -> LogTransactions:
        return transactions_of(self.log, self.replica.footer)

    def add(self, producer: str, value: str, *, epoch: int = 0, sequence: int = 0, acks_all: bool = True) -> None:
        """Add one record of a transaction."""
        self.append(
            [value], producer=producer, epoch=epoch, sequence=sequence, transactional=True, acks_all=acks_all
        )

    def merge(self, policy: MergePolicy = ALL) -> list[Run]:
        log = self.log
        runs = plan_merges(log, policy, 0, self.clock.now_ms(), transactions_of(log, self.replica.footer))
        for run in runs:
            merge_run(self.replica, run, compression="zstd")
        return runs

    def seen(self, isolation: Isolation) -> list[str]:
        """The values that a reader gets."""
        return seen(self.replica, isolation)

    def control(self) -> list[int | None]:
        """The control of every record of the log."""
        return [
            control
            for link in self.log.chain
            for rows in read_batches(self.replica.store, link.file, link.start, link.end)
            for control in rows.column("control").to_pylist()
        ]


# ---------------------------------------------------------------------- the last stable offset


def test_without_transactions_all_below_the_high_watermark_is_stable() -> None:
    log = Log()
    log.append(["a"])
    log.append(["b"], acks_all=False)
    assert log.transactions == LogTransactions(last_stable_offset=1)


def test_the_last_stable_offset_is_where_the_first_open_transaction_begins() -> None:
    """KIP-98, "Discussion on Transaction Ordering": readers get records in offset order, not in the order in which
    transactions end.
    """
    log = Log()
    log.append(["a"])
    log.add("p", "p0")
    log.add("q", "q0")
    log.add("p", "p1", sequence=1)
    assert log.transactions.last_stable_offset == 1
    log.end("q", 1, commit=True)
    assert log.transactions.last_stable_offset == 1
    log.end("p", 1, commit=False)
    assert log.transactions.last_stable_offset == log.log.high_watermark == 6


def test_a_marker_above_the_high_watermark_does_not_count_yet() -> None:
    log = Log()
    log.add("p", "p0")
    log.end("p", 1, commit=True, acks_all=False)
    assert (log.log.high_watermark, log.transactions.last_stable_offset) == (1, 0)
    assert (log.seen(COMMITTED), log.seen(UNCOMMITTED)) == ([], ["p0"])


def test_an_append_above_the_high_watermark_holds_nobody_back() -> None:
    log = Log()
    log.append(["a"])
    log.add("p", "p0", acks_all=False)
    assert log.transactions.last_stable_offset == 1


def test_retention_may_skip_the_start_of_an_open_transaction() -> None:
    """A deleted record delays no reader; the transaction is still open, and its end is still valid."""
    log = Log()
    log.add("p", "p0")
    log.append(["a"])
    entry = log.replica.producers(log.log)
    log.replica.store.create(log.replica.path(LocalStartName(1)), encode(entry))
    assert log.transactions.last_stable_offset == 1
    log.end("p", 1, commit=True)
    assert log.transactions.last_stable_offset == 3
    assert log.seen(COMMITTED) == ["a"]


# --------------------------------------------------------------------------------- the fates


def test_readers_of_committed_records_get_no_others() -> None:
    log = Log()
    log.append(["a"])
    log.add("p", "p0")
    log.add("q", "q0")
    log.end("p", 1, commit=False)
    log.end("q", 1, commit=True)
    log.append(["b"])
    log.add("p", "p1", epoch=1)
    assert log.seen(COMMITTED) == ["a", "q0", "b"]
    assert log.seen(UNCOMMITTED) == ["a", "p0", "q0", "b", "p1"]


def test_a_late_append_of_an_ended_transaction_is_refused() -> None:
    """KIP-890: the epoch of the transaction has ended, so there are no hanging transactions."""
    log = Log()
    log.add("p", "p0")
    log.end("p", 1, commit=False)
    with pytest.raises(InvalidProducerEpochError):
        log.add("p", "late", sequence=1)


def test_a_marker_also_excludes_what_never_arrived() -> None:
    """The partition was part of the transaction, and its append is still in flight."""
    log = Log()
    log.append(["a"])
    log.end("p", 1, commit=False)
    with pytest.raises(InvalidProducerEpochError):
        log.add("p", "late")
    assert log.seen(UNCOMMITTED) == ["a"]


def test_a_marker_is_written_once_and_a_late_one_does_nothing() -> None:
    """This is so even if the next transaction has begun, which stays open."""
    log = Log()
    log.add("p", "p0")
    first = log.end("p", 1, commit=True)
    again = log.end("p", 1, commit=True)
    assert (again.base_offset, again.duplicate) == (first.base_offset, True)
    log.add("p", "p1", epoch=1)
    assert log.end("p", 1, commit=True).duplicate
    assert log.transactions.last_stable_offset == 2
    log.end("p", 2, commit=False)
    assert log.seen(COMMITTED) == ["p0"]


def test_sequences_start_over_with_each_transaction() -> None:
    log = Log()
    log.add("p", "p0", sequence=5)
    log.end("p", 1, commit=True)
    log.add("p", "p1", epoch=1, sequence=0)
    log.add("p", "p1", epoch=1, sequence=0)  # a retry
    log.end("p", 2, commit=True)
    assert log.seen(COMMITTED) == ["p0", "p1"]


def test_records_that_lost_their_marker_do_not_join_a_later_transaction() -> None:
    """An unclean election may lose a marker: the producer's next marker does not have the next epoch, and aborts
    the transaction.
    """
    log = Log()
    log.add("p", "lost")
    log.add("p", "kept", epoch=1)
    assert log.transactions.last_stable_offset == 0
    log.end("p", 2, commit=True)
    assert log.seen(COMMITTED) == ["kept"]


def test_an_open_transaction_outlives_its_producers_expiration() -> None:
    """producer.id.expiration.ms: otherwise its open transaction would be forgotten."""
    begun = after_append({}, ProducerAppend("p", 0, 0, transactional=True), 5, 6, now_ms=0)
    assert unexpired(begun, 10**9, 1) == begun
    over = after_append(begun, marker("p", 1, commit=True), 6, 7, now_ms=0)
    assert unexpired(over, 10**9, 1) == {}


# ---------------------------------------------------------------------------- what merges settle


def test_merges_stop_at_the_last_stable_offset() -> None:
    log = Log()
    for value in "abc":
        log.append([value])
    log.add("p", "p0")
    log.append(["d"])
    assert [(run.start, run.end) for run in log.merge()] == [(0, 3)]


def test_a_merged_segment_says_what_became_of_each_record() -> None:
    log = Log()
    log.append(["a"])
    log.add("p", "p0")
    log.add("q", "q0")
    log.end("p", 1, commit=False)
    log.end("q", 1, commit=True)
    before = log.seen(COMMITTED), log.seen(UNCOMMITTED)
    log.merge()
    assert [link.name.merged for link in log.log.chain] == [True]
    assert log.control() == [None, 2, None, 0, 1]
    assert (log.seen(COMMITTED), log.seen(UNCOMMITTED)) == before


def test_a_large_append_in_a_transaction_is_settled_alone() -> None:
    """Every tiered record contains its outcome."""
    log = Log()
    log.append(["a"])
    log.add("p", "p0")
    log.end("p", 1, commit=False)
    sealed = sealed_runs(log.log, EACH, 0, log.clock.now_ms(), log.transactions)
    assert [(run.is_segment, run.segment_name.merged) for run in sealed] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    assert [(run.start, run.end) for run in log.merge(EACH)] == [(1, 2), (2, 3)]
    assert log.merge(EACH) == []
    assert (log.control(), log.seen(COMMITTED)) == ([None, 2, 0], ["a"])


@pytest.mark.slow
def test_a_marker_that_was_merged_is_still_known() -> None:
    """The append of a marker may stay a separate file for longer, because below the end of the remote log nothing
    is merged.
    """
    log = Log()
    log.add("p", "p0")
    log.append(["a"])
    log.end("p", 1, commit=True)
    log.append(["b"])
    present = log.log
    merges = plan_merges(present, ALL, 1, log.clock.now_ms(), transactions_of(present, log.replica.footer, 1))
    assert [(run.start, run.end) for run in merges] == [(1, 4)]
    merge_run(log.replica, merges[0], compression="zstd")
    assert log.transactions.fates[log.log.chain[0].name] is Fate.COMMITTED
    assert log.seen(COMMITTED) == ["p0", "a", "b"]


def test_no_transaction_is_open_at_the_end_of_a_merged_segment() -> None:
    """The marker of such a transaction comes after the merged segment. If the marker is lost (an unclean
    election), the log continues from the segment, which already has the outcome of the transaction, so readers
    wait for nothing.
    """
    log = Log()
    log.add("p", "p0")
    log.add("q", "q0")
    log.end("p", 1, commit=True)
    log.merge()
    merged = log.log.chain[0]
    assert (merged.name.merged, merged.end) == (True, 1)
    assert log.replica.footer(merged.file).producers["p"].txn_first_offset is None


def test_the_rest_of_an_aborted_append_keeps_its_outcome() -> None:
    """DeleteRecords may set the log start inside an append; readers ask a segment whether it may hold control
    records.
    """
    log = Log()
    log.append(["a", "b", "c", "d"], producer="p", transactional=True)
    log.end("p", 1, commit=False)
    present = log.log
    first, _ = plan_merges(present, EACH, 2, log.clock.now_ms(), transactions_of(present, log.replica.footer, 2))
    merge_run(log.replica, first, compression="zstd")
    log.replica.store.create(log.replica.path(LocalStartName(2)), encode({}))
    (left, _) = log.log.chain
    assert (left.start, left.end, left.name.merged) == (2, 4, True)
    assert log.replica.footer(left.file).may_hold_control


def test_a_run_in_transactions_without_outcomes_is_not_merged() -> None:
    log = Log()
    log.add("p", "p0")
    log.end("p", 1, commit=False)
    with pytest.raises(ValueError, match="outcomes of the transactions in this run are missing"):
        merge_run(log.replica, Run(log.log.chain), compression="zstd")


# ------------------------------------------------------------------- what it costs, and old files


def test_a_log_without_transactions_costs_a_look_at_one_footer() -> None:
    log = Log()
    for value in "abcd":
        log.append([value])
    looked: list[DataFile] = []

    def footer_of(file: DataFile) -> SegmentFooter:
        looked.append(file)
        return log.replica.footer(file)

    transactions_of(log.log, footer_of)
    assert [file.name.base_offset for file in looked] == [3]


def test_files_without_transactions_are_written_as_before_there_were_any() -> None:
    log = Log()
    log.append(["a"], producer="p")
    footer = log.replica.footer(log.log.chain[0].file)
    plain = msgspec.json.decode(encode_footer(footer))
    assert {"transaction", "last_transactional_offset", "markers"}.isdisjoint(plain)
    assert plain["producers"]["p"] == [0, 0, 0, 1, footer.created_ms]
    assert msgspec.json.decode(encode_footer(footer), type=SegmentFooter) == footer


def test_producer_states_of_before_are_read() -> None:
    assert decode(sealed(b'{"p":[1,2,3,4,5]}')) == {"p": ProducerEntry(1, 2, 3, 4, 5)}
    begun = {"p": ProducerEntry(1, 2, 3, 4, 5, txn_first_offset=3)}
    assert decode(encode(begun)) == begun


# -------------------------------------------------------------------------------- a naive twin


@dataclass(slots=True)
class Twin:
    """The expected records of readers, from a list."""

    rows: list[tuple[str, str | None]] = field(default_factory=list)
    """Each value and, in a transaction, its producer."""
    fate: dict[str, bool] = field(default_factory=dict)
    """Whether the transaction of each value was committed."""
    begun: dict[str, list[str]] = field(default_factory=dict)
    """Values of open transactions, by producer."""

    def committed(self) -> Iterator[str]:
        still_open = {value for values in self.begun.values() for value in values}
        for value, producer in self.rows:
            if value in still_open:
                return
            if producer is None or self.fate[value]:
                yield value


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.slow
def test_readers_get_what_a_naive_twin_gives_whatever_is_merged(seed: int) -> None:
    rng, log, twin = random.Random(seed), Log(), Twin()
    epochs = dict.fromkeys("pqr", 0)
    sequences = dict.fromkeys("pqr", 0)
    for step in range(rng.randint(10, 40)):
        producer, value = rng.choice("pqr"), f"v{step}"
        match rng.randrange(6):
            case 0:
                log.append([value])
                twin.rows.append((value, None))
            case 1 | 2:
                log.add(producer, value, epoch=epochs[producer], sequence=sequences[producer])
                sequences[producer] += 1
                twin.rows.append((value, producer))
                twin.begun.setdefault(producer, []).append(value)
            case 3 | 4:
                commit = rng.random() < 0.5
                epochs[producer] += 1
                sequences[producer] = 0
                log.end(producer, epochs[producer], commit=commit)
                twin.fate |= dict.fromkeys(twin.begun.pop(producer, []), commit)
            case _:
                log.merge(rng.choice((ALL, EACH, MergePolicy(8_000, 10**15, 2))))
        assert log.seen(COMMITTED) == list(twin.committed())
        assert log.seen(UNCOMMITTED) == [value for value, _ in twin.rows]
