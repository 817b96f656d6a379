"""Reads of the metadata log: linearizable, and with lost or damaged files (protocol section 5)."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stratalog.engine.quorum.batch
from stratalog.engine.metadata.commands import RegisterBroker
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import NoOpRecord, RegisterBrokerRecord, check_readable
from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.engine.quorum.batch import decode_batch, encode_batch
from stratalog.engine.quorum.repeated import BatchRecords
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.upkeep import keep_up
from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    InconsistentClusterIdError,
    InvalidCallError,
    LogGapError,
    NoMajorityError,
    NotControllerError,
    OutcomeUnknownError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.records import TIMESTAMP, physical_schema
from stratalog.partitions.root import format_root
from stratalog.partitions.segments.writer import SegmentWriter
from stratalog.partitions.store.memory import MemoryStore
from tests.unit.metadata_harness import an_id
from tests.unit.quorum_harness import (
    CLUSTER,
    IMPATIENT,
    Quorum,
    commit_on_voter_1,
    config,
    data,
    once,
    unreachable,
)

# ------------------------------------------------------------------------------------- read


def test_a_read_helps_a_batch_that_only_a_minority_has() -> None:
    """ "Else copy the tail on and list again"."""
    quorum = Quorum(3)
    commit_on_voter_1(quorum)
    assert quorum.log().read().configs == {"segment.bytes": "1"}
    assert quorum.log().read().configs == {"segment.bytes": "1"}


def test_a_read_does_not_return_what_a_later_claimant_may_not_know() -> None:
    """V7a of the attack: claims above the tail's epoch block it; a reader waits, and finally claims an epoch and
    commits an empty batch."""
    quorum = Quorum(3)
    commit_on_voter_1(quorum)
    away = quorum.hooked()
    away[0].hook = unreachable
    later = quorum.log(through=away)
    later.claim()  # on voters 2 and 3, so it does not know the batch
    image = quorum.log().read()
    with pytest.raises(NotControllerError):
        later.commit(config(2))  # if this driver were not fenced, the read above would have been wrong
    assert quorum.log().read().configs == image.configs


def test_a_dead_claimant_does_not_stop_reads() -> None:
    """Attack C1."""
    quorum = Quorum()
    quorum.log().claim()
    log = quorum.log()
    assert log.read().next_offset == 2  # the read committed an empty batch
    assert log.read().next_offset == 2


def test_an_idle_read_costs_one_listing_and_one_look_at_the_root() -> None:
    quorum = Quorum()
    log = quorum.log()
    log.read()
    before = quorum.stores[1].counts.snapshot()
    log.read()
    spent = quorum.stores[1].counts - before
    assert (spent.lists, spent.reads, spent.creates) == (1, 1, 0)


def test_a_read_after_others_costs_their_last_batch() -> None:
    """Such a batch repeats the previous ones."""
    quorum = Quorum()
    log, other = quorum.log(), quorum.log()
    log.read()
    other.claim()
    for value in range(3):
        other.commit(config(value))
    before = quorum.stores[1].counts.snapshot()
    assert log.read().configs == {"segment.bytes": "2"}
    spent = quorum.stores[1].counts - before
    assert (spent.lists, spent.reads, spent.creates) == (1, 1 + 1, 0)


def test_a_commit_costs_one_create_and_one_listing_per_voter() -> None:
    quorum = Quorum(3)
    log = quorum.log()
    log.claim()
    before = [store.counts.snapshot() for store in quorum.stores.values()]
    log.commit(config(1))
    for store, was in zip(quorum.stores.values(), before, strict=True):
        spent = store.counts - was
        assert (spent.creates, spent.lists, spent.reads) == (1, 1, 1)


def test_a_read_looks_at_a_majority() -> None:
    quorum = Quorum(3)
    before = [store.counts.lists for store in quorum.stores.values()]
    quorum.log().read()
    spent = [store.counts.lists - was for store, was in zip(quorum.stores.values(), before, strict=True)]
    assert spent == [1, 1, 0]


# ------------------------------------------------------------------------- a lineage that ends


def after_snapshots(quorum: Quorum, commits: int) -> None:
    """Claim this number of epochs, take a snapshot after each, and delete the log below it."""
    for value in range(commits):
        log = quorum.log(value)
        log.claim()
        log.commit(config(value + 1))
        keep_up(log, quorum.clock, lag_ms=0)


@pytest.mark.slow
def test_a_lineage_forgets_what_is_below_the_log_start() -> None:
    """Kafka truncates the leader epoch cache when the log start moves. Otherwise every batch would have an entry
    for every claim so far."""
    quorum = Quorum(3)
    sleeper = quorum.log()
    sleeper.read()
    after_snapshots(quorum, 10)
    log = quorum.log()
    image = log.read()
    assert len(log.last_known.lineage.entries) <= 4
    assert sleeper.read() == image, "also for one that knows only what is forgotten"
    hint = LogState(ClusterImage(next_offset=1), Lineage([(1, 0)]), 1)
    assert quorum.log(hint=hint).read() == image, "what nobody can tell is not believed"


@pytest.mark.slow
def test_an_outcome_that_the_lineage_no_longer_tells_stays_unknown() -> None:
    """The driver must not decide its command again: the batch may have been committed."""
    quorum = Quorum()
    (store,) = through = quorum.hooked()

    def much_happens(call: Callable[[], object]) -> object:
        created = call()
        after_snapshots(quorum, 10)
        return created

    once(store, "create", data, much_happens)
    with pytest.raises(OutcomeUnknownError, match=r"it is unknown whether .* was committed"):
        quorum.client(through=through).submit(RegisterBroker(1, an_id(1), "a", "x"))
    assert quorum.log().read().brokers[1].broker_epoch == 1


# --------------------------------------------------------------------------- lost and damaged


def test_without_a_majority_the_error_names_the_voters() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    through[0].hook = through[2].hook = unreachable
    with pytest.raises(
        NoMajorityError, match=r"1 of 3 metadata voters can be reached.*: voter 1: .*no such mount.*; voter 3: "
    ):
        quorum.log(through=through).read()


def test_a_minority_of_unreachable_voters_stops_nothing() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    through[0].hook = unreachable
    client = quorum.client(through=through)
    client.submit(AlterConfigs(None, {"segment.bytes": "1"}))
    assert client.image().configs == {"segment.bytes": "1"}


@pytest.mark.parametrize("formatted_anew", [False, True])
def test_a_wiped_voter_does_not_count(formatted_anew: bool) -> None:
    """Section 5: a wiped voter is no voter until it is added again (V9 of the attack)."""
    quorum = Quorum(3)
    quorum.client().submit(AlterConfigs(None, {"segment.bytes": "1"}))
    for broker in (1, 2):
        wiped = MemoryStore(f"memory://wiped-{broker}", quorum.clock)
        if formatted_anew:
            format_root(wiped, CLUSTER, broker, quorum.new_id)
        quorum.stores[broker] = wiped
    with pytest.raises(NoMajorityError, match="wiped" if formatted_anew else "broker.json does not exist"):
        quorum.log(through=list(quorum.stores.values())).read()
    quorum.stores[1] = quorum.voters[0].store  # one of the voters comes back
    assert quorum.log(through=list(quorum.stores.values())).read().configs == {"segment.bytes": "1"}


def damage(quorum: Quorum, broker: int, change: Callable[[bytes], bytes]) -> None:
    """Change the bytes of the last data file of a voter."""
    store = quorum.stores[broker]
    name = [n for n in quorum.names(broker) if data(n)][-1]
    path = f"{quorum.voters[broker - 1].directory_id}/__cluster_metadata/{name}"
    content = change(store.read(path))
    store.delete([path])
    store.create(path, content)


def flipped(content: bytes) -> bytes:
    """The batch with one flipped bit in the lineage of its footer."""
    position = content.index(b'"lineage":[[') + len(b'"lineage":[[')
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


@pytest.mark.parametrize("change", [flipped, lambda c: c[:-9], lambda c: b"", lambda c: b"foreign"])
def test_a_damaged_batch_is_named_and_read_from_another_voter(change: Callable[[bytes], bytes]) -> None:
    alone = Quorum(1)
    alone.client().submit(AlterConfigs(None, {"segment.bytes": "1"}))
    damage(alone, 1, change)
    with pytest.raises(CorruptSegmentError, match=r"voter 1.*00000000000000000001\.0000000002\.parquet"):
        alone.log().read()
    three = Quorum(3)
    three.client().submit(AlterConfigs(None, {"segment.bytes": "1"}))
    damage(three, 1, change)
    assert three.log().read().configs == {"segment.bytes": "1"}


def tail_on(quorum: Quorum, *brokers: int) -> None:
    """A batch on only these voters of three."""
    cut = quorum.hooked()
    log = quorum.log(through=cut, patience=IMPATIENT)
    log.claim()
    for broker in {1, 2, 3} - set(brokers):
        cut[broker - 1].hook = unreachable
    with suppress(OutcomeUnknownError):
        log.commit(config(1))


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_a_damaged_batch_that_was_never_committed_stops_nobody(broker: int) -> None:
    quorum = Quorum(3)
    tail_on(quorum, broker)
    damage(quorum, broker, lambda content: content[:-9])
    assert quorum.log().read().configs == {}
    quorum.client().submit(AlterConfigs(None, {"segment.bytes": "2"}))
    assert quorum.log().read().configs == {"segment.bytes": "2"}


def test_a_damaged_batch_that_may_have_been_committed_is_not_given_up() -> None:
    """The batch was committed, and the only intact copy is unreachable: two of three voters are no majority
    without the damaged one.
    """
    quorum = Quorum(3)
    tail_on(quorum, 1, 2)
    damage(quorum, 1, lambda content: content[:-9])
    cut = quorum.hooked()
    cut[1].hook = unreachable
    with pytest.raises(CorruptSegmentError, match="voter 1"):
        quorum.log(through=cut, patience=IMPATIENT).read()
    assert quorum.log().read().configs == {"segment.bytes": "1"}


@pytest.mark.slow
def test_a_bit_flipped_anywhere_is_found_or_does_no_harm() -> None:
    name = DataName(2, None, 3)
    lineage = Lineage([(1, 0), (3, 2)])
    before = BatchRecords.of(DataName(1, None, 1), config(2), 0)
    content = encode_batch("c", BatchRecords.of(name, config(1), 0), lineage, repeated=[before])
    good = decode_batch("c", name, content, "here")
    assert good.repeated == (before,)
    found = 0
    for position in range(len(content)):
        bad = content[:position] + bytes([content[position] ^ (1 << position % 8)]) + content[position + 1 :]
        try:
            same = decode_batch("c", name, bad, "here")
            assert same in (good, replace(good, repeated=())), "a file that repeats nothing is a batch, too"
        except (CorruptSegmentError, InconsistentClusterIdError):
            found += 1
    assert found > 500


def test_a_batch_without_memory_to_read_it_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 65536000 failed")

    name = DataName(0, None, 1)
    content = encode_batch("c", BatchRecords.of(name, [NoOpRecord()], 0), Lineage([(1, 0)]))
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", fail)
    with pytest.raises(MemoryError):
        decode_batch("c", name, content, "here")


def test_a_batch_of_another_cluster_is_refused() -> None:
    name = DataName(0, None, 1)
    content = encode_batch("other", BatchRecords.of(name, [NoOpRecord()], 0), Lineage([(1, 0)]))
    with pytest.raises(InconsistentClusterIdError, match="belongs to cluster 'other', not 'c'"):
        decode_batch("c", name, content, "here")
    with pytest.raises(CorruptSegmentError, match="from offset 0 on"):
        decode_batch("other", DataName(1, None, 1), content, "here")
    assert decode_batch("other", name, content, "here").records == (NoOpRecord(),)


def delete_file(quorum: Quorum, index: int) -> None:
    name = [n for n in quorum.names(1) if data(n)][index]
    quorum.stores[1].delete([f"{quorum.voters[0].directory_id}/__cluster_metadata/{name}"])


def test_a_gap_is_named() -> None:
    quorum = Quorum()
    log = quorum.log()
    log.claim()
    for value in range(3):
        log.commit(config(value))
    delete_file(quorum, 1)
    with pytest.raises(LogGapError, match="gap at offset 1"):
        quorum.log().read()


def test_a_history_that_was_read_and_is_gone_is_corruption() -> None:
    quorum = Quorum()
    log = quorum.log()
    log.claim()
    log.commit(config(1))
    delete_file(quorum, -1)
    with pytest.raises(CorruptionError, match="lacks committed records"):
        log.read()


def test_a_batch_of_few_bytes_that_decodes_to_many_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stratalog.engine.quorum.batch, "DECODED_BYTES", 1_000_000)
    sink = io.BytesIO()
    writer = SegmentWriter(sink, physical_schema(), topic_id="c", partition=0, base_offset=0)
    value = pa.array([b" " * 1_000_001], pa.binary())
    writer.write(pa.record_batch({"timestamp": pa.nulls(1, TIMESTAMP), "value": value}))
    writer.close(lineage=Lineage([(1, 0)]), producers=lambda _: {}, created_ms=0)
    assert len(sink.getvalue()) < 10_000
    with pytest.raises(CorruptSegmentError, match="more than the 1000000 that a row group of a segment may take"):
        decode_batch("c", DataName(0, None, 1), sink.getvalue(), "voter 1")


def test_a_batch_that_nobody_would_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stratalog.engine.quorum.batch, "DECODED_BYTES", 1_000_000)
    long = RegisterBrokerRecord(broker_id=1, directory_id="d", log_dir="x" * 500_000)
    with pytest.raises(InvalidCallError, match="too many for one metadata commit"):
        encode_batch("c", BatchRecords.of(DataName(0, None, 1), [long] * 2, 0), Lineage([(1, 0)]))
    with pytest.raises(InvalidCallError, match="it has 5000"):
        check_readable(RegisterBrokerRecord(broker_id=1, directory_id="d", log_dir="x" * 5_000_000))
