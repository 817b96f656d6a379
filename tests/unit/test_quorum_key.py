"""The key of a cluster: a writer without it commits nothing, whatever it writes to one voter of three."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from msgspec.structs import replace

from stratalog.engine.metadata.records import MetadataRecord
from stratalog.engine.quorum.batch import KIND, decode_batch, encode_batch
from stratalog.engine.quorum.checkpoints import read_checkpoint, write_checkpoint
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.repeated import BatchRecords
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.upkeep import keep_up
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import (
    ClusterKeyError,
    NoMajorityError,
    NotControllerError,
    StorageError,
    UnsignedError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import BROKER_FILE, CheckpointName, ClaimName, DataName
from stratalog.partitions.root import check_signed, format_root, read_broker_file
from stratalog.partitions.segments.signature import check_signature_of
from stratalog.partitions.store.memory import MemoryStore
from tests.unit.quorum_harness import CLUSTER, Quorum, commit_on_voter_1, config
from tests.unit.quorum_snapshots import committed, ends, listing, path, snapshot

pytestmark = pytest.mark.slow

SECRET, OTHER = b"k" * 32, b"o" * 32
KEY = ClusterKey(CLUSTER, [SECRET])
EVIL = config(666)


def signed(n: int = 3) -> Quorum:
    """Voters whose cluster has the key, with some batches, a snapshot, and batches after it."""
    quorum = Quorum(n, key=KEY)
    committed(quorum.log(), 1, 2)
    snapshot(quorum)
    committed(quorum.log(1), 3, 4)
    return quorum


def put(quorum: Quorum, broker: int, name: DataName | CheckpointName | ClaimName, content: bytes) -> None:
    """Write a file like an attacker with access to the root."""
    where = path(quorum, broker, name)  # type: ignore[arg-type]
    quorum.stores[broker].delete([where])
    quorum.stores[broker].create(where, content)


def state_of(quorum: Quorum) -> LogState:
    return quorum.log(9).committed_log().state


def evil_batch(
    quorum: Quorum, name: DataName, key: ClusterKey | None = None, records: list[MetadataRecord] = EVIL
) -> bytes:
    """A batch that is right except for its author."""
    lineage = state_of(quorum).lineage
    if lineage.latest_epoch < name.epoch:
        lineage = lineage.continued_by(name.epoch, name.base_offset)
    return encode_batch(CLUSTER, BatchRecords.of(name, records, 0), lineage, key)


def evil_checkpoint(quorum: Quorum, key: ClusterKey | None, more: int) -> tuple[CheckpointName, bytes]:
    """A snapshot with an uncommitted value, ``more`` records longer than the log."""
    state = state_of(quorum)
    root = MemoryStore("memory://evil", quorum.clock)
    voter = Voter(1, root, format_root(root, CLUSTER, 1, quorum.new_id).directory_id, key)
    log = MetadataLog(CLUSTER, [voter], clock=quorum.clock, rng=random.Random(0), new_id=quorum.new_id, key=key)
    for _ in range(state.end + more):
        log.claim()
        log.commit(EVIL)
    lineage = state.lineage
    evil = LogState(log.last_known.image, lineage, state.epoch, appended_ms=0)
    write_checkpoint(CLUSTER, voter, evil, quorum.clock)
    return evil.snapshot, root.read(voter.path(evil.snapshot))


def next_batch(quorum: Quorum, broker: int) -> None:
    state = state_of(quorum)
    name = DataName(state.end, None, state.epoch)
    put(quorum, broker, name, evil_batch(quorum, name))


def next_epoch(quorum: Quorum, broker: int) -> None:
    state = state_of(quorum)
    name = DataName(state.end, None, state.epoch + 1)
    put(quorum, broker, name, evil_batch(quorum, name))


def signed_by_another_key(quorum: Quorum, broker: int) -> None:
    state = state_of(quorum)
    name = DataName(state.end, None, state.epoch + 1)
    put(quorum, broker, name, evil_batch(quorum, name, ClusterKey(CLUSTER, [OTHER])))


def of_another_cluster_with_the_key(quorum: Quorum, broker: int) -> None:
    """The footer has this cluster's id: only the tag is from the other cluster."""
    state = state_of(quorum)
    name = DataName(state.end, None, state.epoch + 1)
    put(quorum, broker, name, evil_batch(quorum, name, KEY.of("another")))


def in_the_place_of_a_committed_one(quorum: Quorum, broker: int) -> None:
    last = max(listing(quorum, broker).files)
    put(quorum, broker, last, evil_batch(quorum, last))


def a_signed_one_under_another_name(quorum: Quorum, broker: int) -> None:
    state, last = state_of(quorum), max(listing(quorum, broker).files)
    content = quorum.stores[broker].read(path(quorum, broker, last))
    put(quorum, broker, DataName(state.end, None, state.epoch), content)
    put(quorum, broker, DataName(state.end, None, state.epoch + 1), content)


def an_old_one_again(quorum: Quorum, broker: int) -> None:
    """Write an old batch again under its own name, which is below the snapshot."""
    name = DataName(1, None, 2)
    put(quorum, broker, name, evil_batch(quorum, name))


def claims_above(quorum: Quorum, broker: int) -> None:
    epoch = state_of(quorum).epoch
    for name in (ClaimName(epoch + 1), ClaimName(epoch + 2, "0" * 32), ClaimName(9_999_999_999)):
        put(quorum, broker, name, b"x")


def the_claim_of_another_voter(quorum: Quorum, broker: int) -> None:
    """The claim is valid on the voter where it was made."""
    other = quorum.voters[broker % 3]
    put(quorum, broker, other.claim_name(state_of(quorum).epoch + 7), b"x")


def a_snapshot_further_on(quorum: Quorum, broker: int) -> None:
    put(quorum, broker, *evil_checkpoint(quorum, None, more=3))


def a_snapshot_of_the_whole_log(quorum: Quorum, broker: int) -> None:
    put(quorum, broker, *evil_checkpoint(quorum, None, more=0))


def a_snapshot_signed_by_another_key(quorum: Quorum, broker: int) -> None:
    put(quorum, broker, *evil_checkpoint(quorum, ClusterKey(CLUSTER, [OTHER]), more=3))


def in_the_place_of_a_snapshot(quorum: Quorum, broker: int) -> None:
    (held,) = listing(quorum, broker).checkpoints
    put(quorum, broker, held, evil_checkpoint(quorum, None, more=0)[1])


STRANGERS: list[Callable[[Quorum, int], None]] = [
    next_batch,
    next_epoch,
    signed_by_another_key,
    of_another_cluster_with_the_key,
    in_the_place_of_a_committed_one,
    a_signed_one_under_another_name,
    an_old_one_again,
    claims_above,
    the_claim_of_another_voter,
    a_snapshot_further_on,
    a_snapshot_of_the_whole_log,
    a_snapshot_signed_by_another_key,
    in_the_place_of_a_snapshot,
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("broker", [1, 2, 3])
@pytest.mark.parametrize("writes", STRANGERS, ids=lambda writes: writes.__name__)
def test_a_writer_to_one_voter_of_three_commits_and_stops_nothing(
    writes: Callable[[Quorum, int], None], broker: int
) -> None:
    """Drivers with the log and new drivers read the committed state, and continue from it."""
    quorum = signed()
    knows = quorum.log(2)
    before = knows.read()
    writes(quorum, broker)
    assert knows.read() == before
    assert quorum.log(3).read() == before
    epoch = knows.last_known.epoch
    assert committed(quorum.log(4), 7).configs == {"segment.bytes": "7"}
    after = knows.read()
    assert after.configs == {"segment.bytes": "7"}
    assert after.next_offset == before.next_offset + 1
    assert knows.last_known.epoch < epoch + 10
    keep_up(quorum.log(6), quorum.clock, lag_ms=0)
    assert quorum.log(7).read() == after
    quorum.look()
    assert quorum.log(8).read() == after


def test_files_that_a_stranger_leaves_during_a_claim_do_not_stop_it() -> None:
    """The attacker's first file is below the log of the next driver; the next one is above it."""
    quorum = signed()
    through = quorum.hooked()
    claims = looks = 0

    def between(what: str, name: str, call: Callable[[], object]) -> object:
        nonlocal claims, looks
        if what == "create" and name.endswith(".claim"):
            claims, looks = claims + 1, 0
            if claims in (1, 3):
                next_epoch(quorum, 3)
            if claims == 2:
                committed(quorum.log(5), 8)
        looks += what == "list"
        if (claims, looks) == (2, 2):
            raise StorageError("away for one look: then all voters are listed again")
        return call()

    through[0].hook = between
    log = quorum.log(4, through=through)
    log.claim()
    assert claims >= 4, "damage was met twice"
    assert log.commit(config(9)).configs == {"segment.bytes": "9"}
    assert quorum.log(6).read().configs == {"segment.bytes": "9"}


def test_without_a_key_one_voter_is_trusted_with_the_whole_cluster() -> None:
    """This is the purpose of the key: otherwise the next driver would commit one voter's batch."""
    quorum = Quorum(3)
    committed(quorum.log(), 1)
    next_epoch(quorum, 1)
    assert quorum.log(3).read().configs == {"segment.bytes": "666"}


def test_a_batch_is_signed_for_its_name_and_its_cluster_and_in_every_byte() -> None:
    name = DataName(2, None, 3)
    content = encode_batch(CLUSTER, BatchRecords.of(name, config(1), 0), Lineage([(1, 0), (3, 2)]), KEY)
    check_signature_of(KEY, KIND, str(name), content, "here")
    assert decode_batch(CLUSTER, name, content, "here").signed
    for key, kind, as_name in (
        (KEY.of("another"), KIND, name),
        (ClusterKey(CLUSTER, [OTHER]), KIND, name),
        (KEY, "checkpoint", name),
        (KEY, KIND, DataName(2, None, 4)),
        (KEY, KIND, DataName(3, None, 3)),
    ):
        with pytest.raises(UnsignedError, match="here: its signature is wrong"):
            check_signature_of(key, kind, str(as_name), content, "here")
    passed = []
    for position in range(len(content)):
        bad = content[:position] + bytes([content[position] ^ (1 << position % 8)]) + content[position + 1 :]
        with suppress(UnsignedError):
            check_signature_of(KEY, KIND, str(name), bad, "here")
            passed.append(position)
    crc = content.index(b"log.segment.crc") + len("log.segment.crc") + 2
    assert passed == list(range(crc, crc + 8))  # the checksum of the footer also covers the tag
    for length in (0, 3, 8, 12, 100):
        with pytest.raises(UnsignedError, match="it is not signed"):
            check_signature_of(KEY, KIND, str(name), content[:length], "here")


def test_without_a_key_a_file_is_byte_for_byte_what_it_was() -> None:
    name = DataName(2, None, 3)
    content = encode_batch(CLUSTER, BatchRecords.of(name, config(1), 0), Lineage([(1, 0), (3, 2)]))
    assert b"log.segment.tag" not in content
    assert not decode_batch(CLUSTER, name, content, "here").signed
    quorum = Quorum(1)
    assert quorum.names(1) == ["00000000000000000000.0000000001.parquet", "0000000001.claim"]
    stored = quorum.stores[1].read(BROKER_FILE)
    assert stored == b'{"cluster_id":"c","broker_id":1,"directory_id":"%s","version":1}' % (
        quorum.voters[0].directory_id.encode()
    )


def test_a_driver_without_the_key_reads_but_writes_nothing() -> None:
    quorum = signed()
    without = quorum.log(key=None)
    assert without.read() == quorum.log(1).read()
    before = [quorum.names(broker) for broker in (1, 2, 3)]
    with pytest.raises(ClusterKeyError, match="STRATALOG_CLUSTER_KEY"):
        without.claim()
    fresh = quorum.log(2, key=None)
    with pytest.raises(ClusterKeyError):
        fresh.claim()
    assert [quorum.names(broker) for broker in (1, 2, 3)] == before


@pytest.mark.parametrize("writes", [next_batch, next_epoch, a_snapshot_further_on], ids=lambda one: one.__name__)
def test_a_driver_without_the_key_copies_no_foreign_file_to_other_voters(
    writes: Callable[[Quorum, int], None],
) -> None:
    """To a driver without the key one voter's file looks valid; it must not complete that commit."""
    quorum = signed()
    before = quorum.log(1).read()
    writes(quorum, 1)
    files = [quorum.names(broker) for broker in (1, 2, 3)]
    without = quorum.log(2, key=None)
    if writes is not a_snapshot_further_on:  # without the key a driver believes anybody's snapshot
        assert without.read() == before
    for attempt in (without.claim, lambda: keep_up(without, quorum.clock, lag_ms=0)):
        with pytest.raises((ClusterKeyError, NoMajorityError)):
            attempt()
    assert [quorum.names(broker) for broker in (1, 2, 3)] == files
    assert quorum.log(3).read() == before


def test_a_driver_that_may_not_write_reads_past_a_foreign_file_that_an_unfinished_batch_hides() -> None:
    """The foreign file is detected when uncommitted batches are removed; that voter is left out. (That voter might
    be the one of three with which the batch is committed, which no read could show.)
    """
    quorum = signed(5)
    before = quorum.log(1).read()
    state = state_of(quorum)
    put(quorum, 2, CheckpointName(state.end, state.epoch + 1), b"x")
    last = DataName(state.end, None, state.epoch + 1)
    lineage = state.lineage.continued_by(last.epoch, last.base_offset)
    for voter in quorum.voters:
        assert voter.claim(last.epoch, "who died")
    put(quorum, 1, last, encode_batch(CLUSTER, BatchRecords.of(last, config(5), 0), lineage, KEY))
    assert quorum.log(2, key=None).read() == before


def test_a_driver_that_began_before_the_cluster_was_signed_is_fenced() -> None:
    quorum = Quorum(3)
    late = quorum.log()
    late.claim()
    signs(quorum)
    with pytest.raises(NotControllerError):
        late.commit(EVIL)
    with pytest.raises(ClusterKeyError):
        late.claim()


def signs(quorum: Quorum, key: ClusterKey = KEY) -> None:
    """Signs like ``stratalog.engine.admin.quorum``."""
    from stratalog.engine.quorum.bootstrap import sign_log

    sign_log(quorum.log(99, key=key.trusting_what_is_there()), quorum.clock)
    quorum.key = key
    quorum.look()


def test_a_cluster_that_was_not_signed_is_signed_by_a_caller_who_trusts_what_is_there() -> None:
    quorum = Quorum(3)
    before = committed(quorum.log(), 1, 2, 3)
    with pytest.raises(UnsignedError, match="it is not signed"):
        quorum.log(1, key=KEY).read()
    signs(quorum)
    after = quorum.log(2).read()
    assert (after.configs, after.voters) == (before.configs, before.voters)
    for broker in (1, 2, 3):
        held = listing(quorum, broker)
        assert min(name.base_offset for name in held.files) > before.next_offset - 1
        for name, stored in held.checkpoints.items():
            assert read_checkpoint(CLUSTER, held.voter, name, stored).signed
    next_epoch(quorum, 1)
    assert quorum.log(3).read() == after


def test_a_key_replaces_another_one() -> None:
    """First all drivers know both keys, then the new one signs, then the old one is removed."""
    quorum = signed()
    both = ClusterKey(CLUSTER, [SECRET, OTHER])
    committed(quorum.log(1, key=both), 5)
    new = ClusterKey(CLUSTER, [OTHER, SECRET])
    committed(quorum.log(2, key=new), 6)
    assert committed(quorum.log(3, key=both), 7).configs == {"segment.bytes": "7"}
    keep_up(quorum.log(4, key=new), quorum.clock, lag_ms=0)
    committed(quorum.log(5, key=new), 8)
    keep_up(quorum.log(6, key=new), quorum.clock, lag_ms=0)
    quorum.key = ClusterKey(CLUSTER, [OTHER])
    quorum.look()
    assert committed(quorum.log(7), 9).configs == {"segment.bytes": "9"}


def test_two_drivers_with_different_keys_never_claim_one_epoch() -> None:
    """Both claims are created, because their names differ; no driver counts a voter with another's claim."""
    quorum = signed()
    stranger = ClusterKey(CLUSTER, [OTHER])
    through = quorum.hooked()
    done = False

    def hook(what: str, name: str, call: Callable[[], object]) -> object:
        nonlocal done
        if what == "create" and not done:
            done = True
            epoch = int(name.rpartition("/")[2][:10])
            for voter in quorum.voters:
                other = Voter(voter.broker_id, voter.store, voter.directory_id, stranger)
                assert other.claim(epoch, "another")
        return call()

    for store in through:
        store.hook = hook
    log = quorum.log(1, through=through)
    log.claim()
    epoch = log.next_name.epoch
    claimed = [look.claim_names for look in (voter.look() for voter in quorum.voters)]
    assert all(sum(name.epoch == epoch for name in names) == 1 for names in claimed)


def test_files_of_a_stranger_are_named() -> None:
    quorum = signed()
    before = quorum.log(1)
    before.read()
    claims_above(quorum, 2)
    error = listing(quorum, 2).unsigned
    assert isinstance(error, UnsignedError)
    assert "voter 2" in str(error)
    assert "and 2 more" in str(error)
    assert listing(quorum, 1).unsigned is None
    next_epoch(quorum, 1)
    quorum.notes.clear()
    before.read()
    assert any("voter 1" in note and "it is not signed" in note for note in quorum.notes)


def test_claims_of_strangers_go_with_those_that_are_worth_nothing_any_more() -> None:
    quorum = signed()
    epoch = state_of(quorum).epoch
    put(quorum, 2, ClaimName(epoch - 1), b"x")
    put(quorum, 2, ClaimName(epoch + 100), b"x")
    committed(quorum.log(1), 5)
    keep_up(quorum.log(2), quorum.clock, lag_ms=0)
    left = listing(quorum, 2)
    assert left.claims == (epoch + 1,)
    assert {name.epoch for name in left.claim_names} == {epoch + 1, epoch + 100}


def test_broker_json_is_signed_with_its_broker_its_directory_and_its_cluster() -> None:
    store = signed().stores[2]
    found = read_broker_file(store)
    assert found is not None
    check_signed(found, store, KEY)
    for changed in (
        replace(found, broker_id=1),
        replace(found, directory_id="0" * 32),
        replace(found, cluster_id="another"),
        replace(found, tag=""),
    ):
        with pytest.raises(UnsignedError, match=r"broker\.json"):
            check_signed(changed, store, KEY)
    with pytest.raises(UnsignedError):
        check_signed(found, store, KEY.of("another"))


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_a_stranger_who_takes_the_names_of_snapshots_stops_no_snapshot_and_no_deletion(broker: int) -> None:
    """The attacker knows the next names, and creates them first."""
    quorum = signed()
    for value in (7, 8):
        log = quorum.log(value)
        image = committed(log, value)
        state = log.last_known
        for end in (state.end, state.end + 1):
            put(quorum, broker, CheckpointName(end, state.epoch), b"x")
        snapshot(quorum, log)
    for other in {1, 2, 3} - {broker}:
        assert max(ends(quorum, other)) > image.next_offset
        assert min(name.base_offset for name in listing(quorum, other).files) > 3
    assert quorum.log(1).read().configs == {"segment.bytes": "8"}


def test_a_batch_of_a_minority_that_is_signed_is_finished_as_ever() -> None:
    quorum = Quorum(3, key=KEY)
    commit_on_voter_1(quorum)
    assert quorum.log(1).read().configs == {"segment.bytes": "1"}


def test_snapshots_are_copied_in_chunks_only_where_they_are_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.engine.quorum.checkpoints.RESPONSE_MAX_BYTES", 1000)
    quorum = Quorum(3, key=KEY)
    committed(quorum.log(), 1, 2)
    snapshot(quorum)
    assert ends(quorum, 3) == [3]


def test_a_key_costs_no_request() -> None:
    asked = []
    for key in (None, KEY):
        quorum = Quorum(3, key=key)
        log = quorum.log()
        committed(log, 1, 2)
        snapshot(quorum, log)
        committed(log, 3)
        quorum.log(1).read()
        asked.append([store.counts.requests for store in quorum.stores.values()])
    assert asked[0] == asked[1]


def test_a_key_is_not_shown_and_does_not_travel() -> None:
    for text in (repr(KEY), str(KEY), repr(Quorum(1, key=KEY).voters[0])):
        assert SECRET.decode() not in text
        assert SECRET.hex() not in text
    with pytest.raises(TypeError, match="must not leave the process"):
        pickle.dumps(KEY)
