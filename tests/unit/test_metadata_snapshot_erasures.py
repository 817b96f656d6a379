"""Erasures of partitions with snapshots in the metadata: their generations, and when they are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.engine.metadata.dump import dump, load
from stratalog.engine.metadata.erasure_commands import ErasedEverywhere, ForgetErasures
from stratalog.engine.metadata.partition_commands import AdvanceLogStart, Altered, LogStart, PartitionAnswer
from stratalog.engine.metadata.protection import check_protected
from stratalog.engine.metadata.snapshot_erasure_commands import (
    AddSnapshotErasures,
    NumberSnapshotErasures,
    SnapshotErasure,
)
from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import (
    FencedLeaderEpochError,
    InvalidCallError,
    InvalidConfigError,
    InvalidUpdateVersionError,
    PolicyViolationError,
)
from tests.unit.metadata_harness import Metadata
from tests.unit.test_metadata_erasures import KEY, erase
from tests.unit.test_metadata_partitions import compacted, refusal


def with_snapshots() -> Metadata:
    metadata = compacted()
    metadata.do(AlterConfigs("t", {"cleanup.policy": "snapshot"}))
    return metadata


def wanted(metadata: Metadata, bound: int = 7) -> SnapshotErasure:
    return SnapshotErasure(*KEY, metadata.t.leader_epoch, metadata.t.partition_epoch, bound)


def add(metadata: Metadata, one: SnapshotErasure) -> PartitionAnswer:
    (answer,) = metadata.do(AddSnapshotErasures((one,)))
    return answer


def number(metadata: Metadata) -> SnapshotErasure:
    """Number an erasure; returns the request to add it."""
    one = wanted(metadata)
    (answer,) = metadata.do(NumberSnapshotErasures((one,)))
    assert isinstance(answer, Altered)
    assert answer.partition_epoch == metadata.t.partition_epoch == one.partition_epoch + 1
    return replace(one, partition_epoch=answer.partition_epoch)


def test_one_commit_adds_the_erasure_and_moves_the_log_start() -> None:
    metadata = with_snapshots()
    one = number(metadata)
    answer = add(metadata, one)
    assert isinstance(answer, Altered)
    generation = one.partition_epoch + 1
    assert metadata.image.erasures_of(KEY) == (Erasure(generation, ((0, 7),)),)
    assert metadata.t.log_start_offset == 7
    assert metadata.t.partition_epoch == answer.partition_epoch >= generation
    assert load(dump(metadata.image), metadata.image.next_offset) == metadata.image
    assert isinstance(add(metadata, number(metadata)), Altered), "the log start may stay"
    assert metadata.image.generation_of(KEY) > generation


def test_no_two_runs_get_one_generation() -> None:
    metadata = with_snapshots()
    first = number(metadata)
    second = number(metadata)
    assert first.partition_epoch != second.partition_epoch
    assert isinstance(refusal(add(metadata, first)), InvalidUpdateVersionError)
    assert isinstance(add(metadata, second), Altered)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"leader_epoch": 9}, FencedLeaderEpochError),
        ({"partition_epoch": 9}, InvalidUpdateVersionError),
        ({"bound": 0}, InvalidCallError),
        ({"bound": 3}, InvalidUpdateVersionError),
    ],
)
def test_an_erasure_of_snapshots_from_an_old_view_or_with_a_bad_bound_is_refused(
    changed: dict[str, int], error: type[Exception]
) -> None:
    metadata = with_snapshots()
    metadata.do(AdvanceLogStart((LogStart(*KEY, 5),)))
    before = metadata.image
    assert isinstance(refusal(add(metadata, replace(wanted(metadata), **changed))), error)
    assert metadata.image == before


@pytest.mark.parametrize("configs", [{"cleanup.policy": "delete"}, {"remote.snapshot.table.enable": "true"}])
def test_a_topic_whose_configs_have_changed_is_refused(configs: dict[str, str]) -> None:
    metadata = with_snapshots()
    one = number(metadata)
    metadata.do(AlterConfigs("t", configs))
    assert isinstance(refusal(add(metadata, one)), PolicyViolationError)


def test_a_snapshot_from_before_the_erasure_moves_no_log_start() -> None:
    metadata = with_snapshots()
    add(metadata, number(metadata))
    for generation, moved in ((0, False), (metadata.image.generation_of(KEY), True)):
        start = LogStart(*KEY, 9, metadata.t.leader_epoch, generation)
        (answer,) = metadata.do(AdvanceLogStart((start,)))
        assert isinstance(answer, Altered) == moved
        assert metadata.t.log_start_offset == (9 if moved else 7)


def test_a_topic_keeps_its_snapshots_after_an_erasure_and_gets_none_later() -> None:
    metadata = with_snapshots()
    add(metadata, number(metadata))
    metadata.do(AlterConfigs("t", {"retention.ms": "1000"}))
    with pytest.raises(InvalidConfigError, match="an erasure of the topic's records is not finished"):
        metadata.do(AlterConfigs("t", {"cleanup.policy": "delete"}))
    view = metadata.image.view(*KEY)
    metadata.do(ForgetErasures((ErasedEverywhere(*KEY, view.generation, view.partition_epoch),)))
    metadata.do(AlterConfigs("t", {"cleanup.policy": "delete"}))
    with pytest.raises(InvalidConfigError, match="records were erased from this topic"):
        metadata.do(AlterConfigs("t", {"cleanup.policy": "snapshot"}))
    assert isinstance(erase(metadata, after=metadata.image.generation_of(KEY)), Altered)


def test_protection_refuses_it() -> None:
    metadata = with_snapshots()
    one = number(metadata)
    metadata.do(AlterConfigs("t", {"protect.until.ms": "1000"}))
    records = AddSnapshotErasures((one,)).decide(metadata.image).records
    with pytest.raises(PolicyViolationError):
        check_protected(metadata.image, records, lambda: 10)
