"""Reassignment plans: Kafka's JSON, and the plan for a request."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.reassignment_plan import ReplicaChange, parse_plan, plan_change, plan_json
from stratalog.engine.metadata.topic_commands import CreateTopic
from stratalog.partitions.errors import InvalidCallError
from tests.unit.metadata_harness import Metadata, an_id

KAFKAS = (
    '{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[3,4],"log_dirs":["any","any"]},'
    '{"topic":"a","partition":1,"replicas":[4,5]}]}'
)


def test_kafkas_own_plans_are_understood() -> None:
    """The plans are in the format of ``kafka-reassign-partitions --generate``."""
    assert parse_plan(KAFKAS, "p.json") == {("a", 0): (3, 4), ("a", 1): (4, 5)}


@given(
    st.dictionaries(
        st.tuples(st.text(min_size=1, max_size=8), st.integers(0, 99)),
        st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
    )
)
def test_a_written_plan_is_parsed_to_the_same_plan(plan: dict[tuple[str, int], tuple[int, ...]]) -> None:
    assert parse_plan(plan_json(plan), "p.json") == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.json is not a reassignment plan: "),
        ("[]", r"Expected `object`, got `array`"),
        ("{", "p.json is not a reassignment plan: "),
        ('{"version": 1}', "missing required field `partitions`"),
        (
            '{"version": 1, "partitions": [{"topic": "t", "partition": 0}]}',
            r"`replicas` - at `\$.partitions\[0\]`",
        ),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": "0", "replicas": []}]}', "Expected `int`"),
        ('{"version": 1, "partitions": [], "topics": []}', "unknown field `topics`"),
        ('{"version": 2, "partitions": []}', "a plan of version 2; only version 1 is supported"),
        (KAFKAS.replace('"partition":1', '"partition":0'), "p.json names a-0 twice"),
        (KAFKAS.replace('["any","any"]', '["/data/1","any"]'), "log_dirs of a-0: a broker has one log dir"),
    ],
)
def test_a_malformed_plan_is_named_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InvalidCallError, match=message) as found:
        parse_plan(text, "p.json")
    assert str(found.value).startswith("p.json")


def test_a_text_that_is_no_text_is_malformed_too() -> None:
    with pytest.raises(InvalidCallError, match="not a reassignment plan"):
        parse_plan(b"\xff\xfe", "p.json")


# ------------------------------------------------------------------------------------- wishes


def cluster(brokers: int, topics: list[tuple[int, int]]) -> ClusterImage:
    """Brokers in separate racks; topics u0, u1, ... with these numbers of partitions and replicas."""
    metadata = Metadata(brokers)
    for number, (partitions, factor) in enumerate(topics):
        metadata.do(
            CreateTopic(
                name=f"u{number}",
                topic_id=an_id(500 + number),
                partitions=partitions,
                replication_factor=min(factor, brokers),
            )
        )
    return metadata.image


clusters = st.builds(
    cluster, st.integers(2, 6), st.lists(st.tuples(st.integers(1, 8), st.integers(1, 6)), min_size=1, max_size=3)
)


@given(clusters, st.integers(1, 6))
def test_a_replication_factor_is_what_every_partition_gets_and_little_moves(
    image: ClusterImage, factor: int
) -> None:
    factor = min(factor, len(image.brokers))
    plan = plan_change(image, image.topic_ids, ReplicaChange(replication_factor=factor))
    for name in image.topic_ids:
        for partition in image.topic(name).partitions:
            before = partition.replicas
            after = plan.get((name, partition.partition), before)
            assert len(after) == len(set(after)) == factor
            assert set(after) <= set(before) or set(before) <= set(after)
            assert after[0] == before[0]


@given(clusters, st.integers(1, 6))
def test_draining_moves_what_is_there_and_nothing_else(image: ClusterImage, gone: int) -> None:
    gone = min(gone, len(image.brokers))
    names = [
        name
        for name in image.topic_ids
        if all(len(p.replicas) < len(image.brokers) for p in image.topic(name).partitions)
    ]
    plan = plan_change(image, names, ReplicaChange(drain=(gone,)))
    for name in names:
        for partition in image.topic(name).partitions:
            before = partition.replicas
            after = plan.get((name, partition.partition), before)
            assert gone not in after
            assert len(set(after)) == len(before)
            assert set(before) - {gone} <= set(after)
            assert ((name, partition.partition) in plan) == (gone in before)


def test_replicas_and_leaders_of_a_drained_broker_are_spread() -> None:
    image = cluster(6, [(30, 2)])
    plan = plan_change(image, ["u0"], ReplicaChange(drain=(1,)))
    held = Counter(
        broker for p in image.topic("u0").partitions for broker in plan.get(("u0", p.partition), p.replicas)
    )
    led = Counter(plan.get(("u0", p.partition), p.replicas)[0] for p in image.topic("u0").partitions)
    assert 1 not in held
    assert max(held.values()) - min(held.values()) <= 2
    assert max(led.values()) - min(led.values()) <= 2


def with_racks(image: ClusterImage, racks: dict[int, str]) -> ClusterImage:
    brokers = {b: structs.replace(broker, rack=racks[b]) for b, broker in image.brokers.items()}
    return replace(image, brokers=brokers)


def test_another_rack_is_preferred_to_the_one_that_has_a_replica_already() -> None:
    metadata = Metadata(3)
    for broker_id in (4, 5):
        metadata.register(broker_id)
    image = with_racks(metadata.image, {1: "x", 2: "y", 3: "z", 4: "x", 5: "z"})
    assert plan_change(image, ["t"], ReplicaChange(drain=(3,))) == {("t", 0): (1, 2, 5)}
    assert plan_change(image, ["t"], ReplicaChange(drain=(2,))) in ({("t", 0): (1, 4, 3)}, {("t", 0): (1, 5, 3)})


def test_the_replica_that_shares_a_rack_is_given_up_first() -> None:
    image = with_racks(Metadata(4).image, {1: "x", 2: "y", 3: "x", 4: "z"})
    assert plan_change(image, ["t"], ReplicaChange(replication_factor=3)) == {("t", 0): (1, 2, 4)}
