"""The image as records of a snapshot (KIP-630, "Overview" and "Snapshot Format")."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.engine.metadata.dump import (
    CODEC,
    PARTITIONS_PER_RECORD,
    BrokerRecord,
    PartitionsRecord,
    SnapshotRecord,
    TopicStateRecord,
    decode,
    dump,
    encode,
    load,
)
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import BrokerImage, ClusterImage, Incarnation, PartitionImage, TopicImage
from stratalog.engine.metadata.records import (
    ConfigRecord,
    ConfigResource,
    NoOpRecord,
    VoterId,
    VotersRecord,
)
from stratalog.engine.metadata.records import encode as encode_logged
from stratalog.partitions.errors import CorruptionError
from stratalog.snapshots.state_machine import load_dump
from tests.unit.metadata_harness import Metadata, an_id
from tests.unit.metadata_histories import random_history


def reloaded(image: ClusterImage) -> ClusterImage:
    """The image after a dump and a load, through bytes."""
    return load((decode(encode(record)) for record in dump(image)), image.next_offset)


@pytest.mark.nightly
@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), cut=st.integers(0, 400))
def test_a_fold_in_one_go_equals_a_fold_in_steps_with_a_snapshot_anywhere_between(seed: int, cut: int) -> None:
    """This includes deleting a topic and creating another one of the same name with other configs."""
    history = random_history(random.Random(seed), 120)
    before = apply(ClusterImage(), 0, history.records[:cut])
    snapshot = reloaded(before)
    assert snapshot == before
    assert apply(snapshot, snapshot.next_offset, history.records[cut:]) == history.image


@pytest.mark.slow
def test_equal_images_have_equal_dumps() -> None:
    """Any driver makes the same snapshot at an offset, however it has obtained the image."""
    for seed in range(30):
        image = random_history(random.Random(seed), 80).image
        assert list(dump(reloaded(image))) == list(dump(image))


def test_records_are_values_without_keys() -> None:
    """``stratalog.snapshots.state_machine.Codec``."""
    image = random_history(random.Random(7), 80).image
    rows = [CODEC.encode(record) for record in dump(image)]
    assert {key for key, _ in rows} == {None}
    assert load_dump(rows, image.next_offset, CODEC, load) == image
    with pytest.raises(CorruptionError, match="without a key"):
        CODEC.decode(b"k", b"{}")


def test_every_field_of_the_image_is_in_the_snapshot() -> None:
    """All values differ from their defaults: a new field that is not dumped makes this fail."""
    broker = BrokerImage(
        broker_id=2,
        broker_epoch=7,
        directory_id=an_id(2),
        rack="r",
        log_dir="file:///2",
        fenced=True,
        incarnation_folder="h",
        root="1@2",
        fenced_by_hand=True,
    )
    led = PartitionImage(
        partition=0,
        replicas=(2, 3),
        assignments=(8, 9),
        leader=2,
        leader_epoch=4,
        isr=(2,),
        adding=(3,),
        log_start_offset=11,
        partition_epoch=12,
        target=(3,),
        joining=(3,),
    )
    lost = PartitionImage(
        partition=1,
        replicas=(2,),
        assignments=(8,),
        leader=None,
        leader_epoch=5,
        isr=(),
        adding=(),
        log_start_offset=0,
        partition_epoch=3,
        lost=(Incarnation(2, an_id(2), "1@2", "h"),),
    )
    topic = TopicImage(
        name="t",
        topic_id=an_id(5),
        key_schema='"string"',
        value_schema='"long"',
        partitions=(led, lost),
        configs={"segment.bytes": "1"},
    )
    image = ClusterImage(
        cluster_id="c",
        voters=(VoterId(2, an_id(2)),),
        replaced=(3,),
        brokers={
            2: broker,
            3: BrokerImage(**{**{f: getattr(broker, f) for f in broker.__struct_fields__}, "broker_id": 3}),
        },
        topics={an_id(5): topic},
        topic_ids={"t": an_id(5)},
        configs={"segment.ms": "2"},
        next_offset=13,
    )
    assert reloaded(image) == image


def test_an_image_before_its_first_record_is_an_image() -> None:
    assert reloaded(ClusterImage()) == ClusterImage()


@pytest.mark.parametrize("partitions", [0, 1, PARTITIONS_PER_RECORD, 3 * PARTITIONS_PER_RECORD + 1])
def test_a_topic_of_any_size_is_dumped_in_records_of_a_bounded_size(partitions: int) -> None:
    one = Metadata().image.topic("t").partitions[0]
    many = tuple(
        PartitionImage(**{**{f: getattr(one, f) for f in one.__struct_fields__}, "partition": number})
        for number in range(partitions)
    )
    topic = TopicImage(name="t", topic_id="i", key_schema=None, value_schema=None, partitions=many)
    image = ClusterImage(cluster_id="c", topics={"i": topic}, topic_ids={"t": "i"}, next_offset=4)
    sizes = [len(record.partitions) for record in dump(image) if isinstance(record, PartitionsRecord)]
    assert sum(sizes) == partitions
    assert all(0 < size <= PARTITIONS_PER_RECORD for size in sizes)
    assert reloaded(image) == image


def test_dumping_makes_one_record_at_a_time() -> None:
    """A dump is streamed: only the requested part has been made."""
    records = dump(Metadata().image)
    assert isinstance(next(records), VotersRecord)
    assert isinstance(next(records), BrokerRecord)


def _records() -> list[SnapshotRecord]:
    return list(dump(Metadata().image))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda records: records[1:], "lacks its voters"),
        (lambda records: [*records, records[0]], "does not belong there"),
        (lambda records: [*records, records[1]], "holds broker 1 twice"),
        (lambda records: [*records, records[-1]], "partitions of topic 't' out of order"),
        (lambda records: [*records, *records[-2:]], "holds topic 't' twice"),
        (lambda records: [*records[:-2], records[-1]], "without their topic"),
        (
            lambda records: [*records, ConfigRecord(resource=ConfigResource.TOPIC, name="t", key="k", value="v")],
            "does not belong there",
        ),
    ],
)
def test_records_that_no_image_dumps_to_are_refused(change: object, complaint: str) -> None:
    assert callable(change)
    with pytest.raises(CorruptionError, match=complaint):
        load(change(_records()), 5)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b'{"type":"Later"}',
        encode_logged(NoOpRecord()),
        encode(TopicStateRecord(topic=Metadata().image.topic("t"))).replace(b'"configs"', b'"later"'),
        b'{"type":"PartitionsRecord","topic_id":"i","partitions":[[0,[],[],null,1,[],[],0,0]]}',
    ],
)
def test_a_record_that_no_snapshot_has_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode(text)
