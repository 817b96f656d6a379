"""Erasures in the metadata: who may add one, and what is stored for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.engine.metadata import dump as snapshots
from stratalog.engine.metadata.dump import dump, load
from stratalog.engine.metadata.erasure_commands import (
    AddErasures,
    ErasedEverywhere,
    ForgetErasures,
    WantedErasure,
)
from stratalog.engine.metadata.partition_commands import AddRules, Altered, PartitionAnswer
from stratalog.engine.metadata.protection import check_protected
from stratalog.engine.metadata.records import ErasureRecord, decode, encode
from stratalog.engine.metadata.topic_commands import AlterConfigs, DeleteTopic
from stratalog.partitions.clock import FOREVER_MS
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import (
    CorruptionError,
    FencedLeaderEpochError,
    InvalidCallError,
    InvalidReplicaAssignmentError,
    InvalidUpdateVersionError,
    PolicyViolationError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from tests.unit.metadata_harness import Metadata, an_id
from tests.unit.test_metadata_partitions import compacted, refusal, wanted_rule

KEY = TopicIdPartition(an_id(99), 0)
ONE = ((3, 5), (9, 10))


def wanted(metadata: Metadata, after: int = 0) -> WantedErasure:
    return WantedErasure(*KEY, ONE, after, metadata.t.leader_epoch, metadata.t.partition_epoch)


def erase(metadata: Metadata, after: int = 0, **more: object) -> PartitionAnswer:
    (answer,) = metadata.do(AddErasures((replace(wanted(metadata, after), **more),)))  # type: ignore[arg-type]
    return answer


def forget(metadata: Metadata, generation: int, behind: int = 0) -> PartitionAnswer:
    done = ErasedEverywhere(*KEY, generation, metadata.t.partition_epoch - behind)
    (answer,) = metadata.do(ForgetErasures((done,)))
    return answer


def erasures(metadata: Metadata) -> tuple[Erasure, ...]:
    return metadata.image.erasures_of(KEY)


def test_offsets_are_kept_until_they_are_forgotten_and_the_generation_forever() -> None:
    metadata = compacted()
    assert isinstance(erase(metadata), Altered)
    assert isinstance(erase(metadata, after=1), Altered)
    assert erasures(metadata) == (Erasure(1, ONE), Erasure(2, ONE))
    assert load(dump(metadata.image), metadata.image.next_offset) == metadata.image
    assert isinstance(refusal(forget(metadata, 2, behind=1)), InvalidUpdateVersionError), (
        "another replica may be new"
    )
    assert isinstance(forget(metadata, 1), Altered)
    assert erasures(metadata) == (Erasure(2, ONE),)
    assert isinstance(forget(metadata, 2), Altered)
    assert erasures(metadata) == (Erasure(2, ()),)
    assert metadata.image.view(*KEY).generation == 2
    assert load(dump(metadata.image), metadata.image.next_offset) == metadata.image


@pytest.mark.parametrize("force", [False, True])
def test_no_reassignment_leaves_only_replicas_that_may_have_erased_records(force: bool) -> None:
    """None of them could lead, and the partition could not recover."""
    metadata = compacted()
    erase(metadata)
    metadata.propose([1])
    before = metadata.t
    error = refusal(metadata.reassign(2, 3, force=force))
    assert isinstance(error, InvalidReplicaAssignmentError)
    assert "bring back a broker of the ISR" in str(error)
    assert metadata.t == before
    assert isinstance(metadata.reassign(1, 2, force=force), Altered), "one of these is in the ISR"
    forget(metadata, 1)
    assert isinstance(metadata.reassign(2, force=True), Altered)


def test_erasures_and_compactions_share_their_generations() -> None:
    metadata = compacted()
    erase(metadata)
    (answer,) = metadata.do(AddRules((wanted_rule(metadata, 10, 0),)))
    assert isinstance(refusal(answer), InvalidUpdateVersionError)
    metadata.do(AddRules((wanted_rule(metadata, 10, 1),)))
    assert metadata.image.rules_of(KEY)[-1].rule.generation == 2
    assert isinstance(refusal(erase(metadata, after=1)), InvalidUpdateVersionError)
    erase(metadata, after=2)
    assert metadata.image.generation_of(KEY) == 3


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"leader_epoch": 9}, FencedLeaderEpochError),
        ({"partition_epoch": 9}, InvalidUpdateVersionError),
        ({"after": 1}, InvalidUpdateVersionError),
        ({"offsets": ()}, InvalidCallError),
        ({"offsets": ((3, 3),)}, InvalidCallError),
        ({"offsets": ((5, 6), (3, 4))}, InvalidCallError),
        ({"offsets": tuple((2 * n, 2 * n + 1) for n in range(20_001))}, InvalidCallError),
        ({"partition": 7}, StratalogError),
    ],
)
def test_an_erasure_from_an_old_view_or_with_bad_offsets_is_refused(
    changed: dict[str, object], error: type[Exception]
) -> None:
    metadata = compacted()
    (answer,) = metadata.do(AddErasures((replace(wanted(metadata), **changed),)))  # type: ignore[arg-type]
    assert isinstance(refusal(answer), error)
    assert not erasures(metadata)


@pytest.mark.parametrize(
    "configs", [{"cleanup.policy": "delete", "remote.storage.enable": "true"}, {"cleanup.policy": "snapshot"}]
)
def test_a_topic_with_other_copies_gets_no_erasure(configs: dict[str, str]) -> None:
    metadata = compacted()
    metadata.do(AlterConfigs("t", configs))
    assert isinstance(refusal(erase(metadata)), PolicyViolationError)


def test_too_many_offsets_wait_for_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.engine.metadata.erasure_commands.MOST_KEPT_RANGES", 3)
    metadata = compacted()
    erase(metadata)
    assert "bring back the unreachable brokers" in str(refusal(erase(metadata, after=1)))


def test_a_protected_topic_gets_no_erasure() -> None:
    metadata = compacted()
    metadata.do(AlterConfigs("t", {"protect.until.ms": str(FOREVER_MS // 2)}))
    record = ErasureRecord(topic_id=KEY.topic_id, partition=0, erasure=Erasure(1, ONE))
    with pytest.raises(PolicyViolationError, match="no erasure can remove its records"):
        check_protected(metadata.image, [record], lambda: 0)


def test_no_election_gives_up_records_while_offsets_wait() -> None:
    metadata = compacted()
    metadata.do(AlterConfigs("t", {"cleanup.policy": "delete"}))
    erase(metadata)
    metadata.elect(2)
    metadata.fence(1, 2)
    metadata.fence(3)
    metadata.unfence(1)
    assert "has applied an erasure yet" in str(refusal(metadata.elect(1, unclean=True)))
    assert isinstance(forget(metadata, 1), Altered)
    metadata.elect(1, unclean=True)
    assert metadata.t.leader == 1


def test_a_record_comes_back_and_an_older_release_refuses_it_by_name() -> None:
    record = ErasureRecord(topic_id=KEY.topic_id, partition=0, erasure=Erasure(1, ONE))
    assert decode(encode(record)) == record
    with pytest.raises(CorruptionError, match="of a later version"):
        decode(encode(record).replace(b"ErasureRecord", b"LaterRecord"))
    lone = snapshots.ErasuresRecord(topic_id=KEY.topic_id, partition=0, erasures=(Erasure(1, ONE),))
    with pytest.raises(CorruptionError, match="does not belong there"):
        load([lone], 0)


def test_a_topic_leaves_with_its_erasures() -> None:
    metadata = compacted()
    erase(metadata)
    metadata.do(DeleteTopic("t"))
    assert not metadata.image.erasures
