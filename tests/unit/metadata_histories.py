"""Random histories of the metadata: they use every command, usually with allowed arguments, and check the
invariants after each step.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pyarrow as pa

from stratalog.engine.metadata.commands import (
    Command,
    FenceBroker,
    RegisterBroker,
    UnfenceBroker,
    UnregisterBroker,
)
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage, PartitionImage, TopicImage
from stratalog.engine.metadata.partition_commands import (
    AddRules,
    AdvanceLogStart,
    Altered,
    AlterPartition,
    IsrProposal,
    LogStart,
    Member,
    RefusedPartition,
    WantedRule,
)
from stratalog.engine.metadata.reassignment_commands import AlterPartitionReassignments, Reassignment
from stratalog.engine.metadata.records import MetadataRecord, decode, encode
from stratalog.engine.metadata.topic_commands import AlterConfigs, AlterTopic, CreateTopic, DeleteTopic
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.growth import grew
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.records import type_from_json, type_to_json
from stratalog.partitions.removal import Rule
from tests.unit.metadata_harness import an_id

BROKERS = 5
SCHEMAS = [
    type_to_json(pa.struct([(name, pa.int64()) for name in names])) for names in ("x", "xy", "xz", "xyz", "xyzw")
]


@dataclass
class History:
    """The commits, their results, and the events of a history."""

    records: list[MetadataRecord] = field(default_factory=list)
    image: ClusterImage = field(default_factory=ClusterImage)
    seen: set[str] = field(default_factory=set)


def random_history(rng: random.Random, commands: int) -> History:
    """A history of this number of commands, allowed or refused; every step is checked."""
    history = History()
    for _ in range(commands):
        command = random_command(rng, history.image)
        before = history.image
        try:
            decision = command.decide(before)
        except StratalogError as error:
            history.seen.add(f"{type(command).__name__}: {error.code}")
            continue
        assert command.decide(before).records == decision.records
        assert tuple(decode(encode(record)) for record in decision.records) == decision.records
        after = apply(before, before.next_offset, decision.records)
        check_step(before, after, command, history.seen)
        if isinstance(decision.answer, tuple):
            check_answers(before, after, decision.answer, f"{type(command).__name__}: ", history.seen)
        history.records += decision.records
        history.image = after
    return history


# ------------------------------------------------------------------------------- commands


def random_command(rng: random.Random, image: ClusterImage) -> Command[object]:
    """A random command, usually an allowed one."""
    partitions = [(topic.topic_id, p) for topic in image.topics.values() for p in topic.partitions]
    if not image.brokers or rng.random() < 0.45:
        return _broker_command(rng, image)
    if not partitions or rng.random() < 0.15:
        return _topic_command(rng)
    topic_id, partition = rng.choice(partitions)
    match rng.randrange(9):
        case 8:
            rules = image.rules_of(TopicIdPartition(topic_id, partition.partition))
            last = rules[-1].rule if rules else Rule(0, 0)
            bound = last.bound + rng.randint(-1, 3)
            after = last.generation - (rng.random() < 0.1)
            now_ms = rng.randint(0, 100)
            wanted_rule = WantedRule(
                topic_id,
                partition.partition,
                bound,
                after,
                partition.leader_epoch,
                now_ms,
                now_ms,
                rng.randint(0, 50),
                partition.partition_epoch - (rng.random() < 0.1),
            )
            return AddRules((wanted_rule,))
        case 0:
            return AdvanceLogStart((LogStart(topic_id, partition.partition, rng.randint(0, 20)),))
        case 1 | 2:
            return ElectLeaders((_election(rng, topic_id, partition),))
        case 3 | 4:
            target = None if rng.random() < 0.3 else tuple(rng.sample(range(1, BROKERS + 1), rng.randint(1, 3)))
            wanted = Reassignment(topic_id, partition.partition, target, force=rng.random() < 0.2)
            return AlterPartitionReassignments((wanted, wanted) if rng.random() < 0.1 else (wanted,))
        case _:
            return AlterPartition((_proposal(rng, image, topic_id, partition),))


def _broker_command(rng: random.Random, image: ClusterImage) -> Command[object]:
    broker_id = rng.randint(1, BROKERS)
    present = image.brokers.get(broker_id)
    match rng.randrange(6):
        case 0 if present is not None:
            return FenceBroker(broker_id, rng.choice([None, present.broker_epoch, 0]), rng.random() < 0.3)
        case 1 | 2 if present is not None:
            return UnfenceBroker(broker_id, present.broker_epoch)
        case 3 if present is not None:
            return UnregisterBroker(broker_id)
        case _:
            incarnation = rng.choice([0, 0, 0, 1])
            root = rng.choice(["", "a", "a", "b"])
            directory_id = an_id(1000 * incarnation + broker_id)
            return RegisterBroker(broker_id, directory_id, "a", "x", root, rng.random() < 0.2)


def _topic_command(rng: random.Random) -> Command[object]:
    names = ["t", "u", "v"]
    match rng.randrange(5):
        case 0:
            return DeleteTopic(rng.choice(names))
        case 4:
            return AlterTopic(rng.choice(names), rng.choice([None, SCHEMAS[0]]), rng.choice(SCHEMAS))
        case 1:
            value = rng.choice([None, "1", "2"])
            return AlterConfigs(rng.choice([None, *names]), {rng.choice(["segment.bytes", "segment.ms"]): value})
        case _:
            return CreateTopic(
                name=rng.choice(names),
                topic_id=an_id(rng.randrange(10**6) + 10**6),
                partitions=rng.randint(1, 3),
                replication_factor=rng.randint(1, 3),
                value_schema=rng.choice([None, *SCHEMAS[:2]]),
                configs={"cleanup.policy": "compact"} if rng.random() < 0.5 else {"segment.bytes": "9"},
            )


def _election(rng: random.Random, topic_id: str, partition: PartitionImage) -> Election:
    return Election(
        topic_id,
        partition.partition,
        leader=rng.choice([None, *partition.replicas]),
        unclean=partition.leader is None or rng.random() < 0.2,
        resign=rng.random() < 0.3,
        partition_epoch=rng.choice([None, partition.partition_epoch]),
    )


def _proposal(rng: random.Random, image: ClusterImage, topic_id: str, partition: PartitionImage) -> IsrProposal:
    some = [b for b in partition.replicas if b in partition.isr or rng.random() < 0.7]
    if rng.random() < 0.2:
        some = [b for b in some if b == partition.leader or rng.random() < 0.5]
    members = {b: Member(b, image.brokers[b].broker_epoch - (rng.random() < 0.03)) for b in some}
    known = {*partition.isr, *partition.adding}
    return IsrProposal(
        topic_id=topic_id,
        partition=partition.partition,
        leader_epoch=partition.leader_epoch - (rng.random() < 0.03),
        partition_epoch=partition.partition_epoch - (rng.random() < 0.03),
        isr=tuple(members[b] for b in some if b in known),
        adding=tuple(members[b] for b in some if b not in known),
    )


# ------------------------------------------------------------------------------ invariants


def check_answers(
    before: ClusterImage, after: ClusterImage, answers: tuple[object, ...], name: str, seen: set[str]
) -> None:
    """Check that the answers of a batch describe its result, and that a refused part is unchanged."""
    altered = {(a.topic_id, a.partition) for a in answers if isinstance(a, Altered)}
    for answer in answers:
        match answer:
            case Altered(topic_id, partition, partition_epoch):
                assert after.partition(topic_id, partition).partition_epoch == partition_epoch
            case RefusedPartition(topic_id, partition, error):
                seen.add(name + error.code)
                if (topic_id, partition) not in altered:
                    assert after.partition(topic_id, partition) == before.partition(topic_id, partition)


def check_step(before: ClusterImage, after: ClusterImage, command: Command[object], seen: set[str]) -> None:
    """Check every change of every partition, and the names of topics."""
    for topic_id, topic in after.topics.items():
        for new in topic.partitions:
            check_partition(after, topic_id, new)
        if topic_id in before.topics:
            check_schema(before.topics[topic_id], topic, command, seen)
            for new in topic.partitions:
                check_change(before, after, TopicIdPartition(topic_id, new.partition), command, seen)
    assert {name: after.topics[i].name for name, i in after.topic_ids.items()} == {
        name: name for name in after.topic_ids
    }
    assert len(after.topic_ids) == len(after.topics)


def check_schema(old: TopicImage, new: TopicImage, command: Command[object], seen: set[str]) -> None:
    """Check that a declared schema only grows, and that nothing else of the topic changes then."""
    if (old.key_schema, old.value_schema) == (new.key_schema, new.value_schema):
        return
    assert isinstance(command, AlterTopic)
    assert old.value_schema is not None
    assert new.value_schema is not None
    assert grew(type_from_json(old.value_schema), type_from_json(new.value_schema))
    assert (old.key_schema, old.configs, old.partitions) == (new.key_schema, new.configs, new.partitions)
    seen.add("grown")


def check_partition(image: ClusterImage, topic_id: str, new: PartitionImage) -> None:
    """Check the invariants of every partition that ``PartitionImage`` does not check itself."""
    fenced = {b for b in new.replicas if image.brokers[b].fenced}
    if new.leader is None:
        assert set(new.isr) <= fenced, "a candidate, and yet no leader"
    else:
        assert new.leader in new.isr
        assert new.leader not in fenced
    assert not fenced & set(new.adding)
    assert len(new.isr) <= 1 or not fenced & set(new.isr)
    assert new.replicas == new.original + new.joining
    assert bool(new.target) == bool(new.joining)
    view = image.view(topic_id, new.partition)
    assert view.brokers.keys() == view.assignments.keys() == set(new.replicas)
    for name in ("leader", "leader_epoch", "isr", "adding", "replicas", "partition_epoch", "target", "joining"):
        assert getattr(view, name) == getattr(new, name)


def check_change(
    before: ClusterImage, after: ClusterImage, key: TopicIdPartition, command: Command[object], seen: set[str]
) -> None:
    """Check one command's change of one partition."""
    old, new = before.partition(*key), after.partition(*key)
    assert new.partition_epoch == old.partition_epoch + (new != old)
    if earlier := before.rules_of(key):
        was, now = earlier[-1].rule, after.rules_of(key)[-1].rule
        assert was.bound <= now.bound
        assert was.tombstones_before <= now.tombstones_before
        assert now.generation == was.generation + (isinstance(command, AddRules) and new != old)
        assert new.unclean_epoch == old.unclean_epoch
    assert new.log_start_offset >= old.log_start_offset
    assert new.leader_epoch == old.leader_epoch + (new.leader != old.leader)
    if new.leader_epoch != old.leader_epoch:
        assert not new.adding
    if old.isr and not new.isr:
        assert isinstance(command, RegisterBroker | AlterPartitionReassignments)
        seen.add("storage lost" if isinstance(command, RegisterBroker) else "removed by force")
    joined = set(new.isr) - set(old.isr)
    if joined and not joined <= set(old.adding):
        assert new.isr == (new.leader,) == tuple(joined)
        if isinstance(command, RegisterBroker):
            assert not old.isr
            assert new.leader in {lost.broker_id for lost in old.lost}
            seen.add("lost and back")
        else:
            assert isinstance(command, ElectLeaders)
            assert all(before.brokers[b].fenced for b in old.isr)
            seen.add("unclean")
    placed = dict(zip(old.replicas, old.assignments, strict=True))
    for broker_id, assignment in zip(new.replicas, new.assignments, strict=True):
        assert assignment == placed.get(broker_id, before.next_offset)
    if isinstance(command, AlterPartitionReassignments):
        seen.add("reassigned")
    elif isinstance(command, AlterPartition) and old.target and not new.target:
        assert new.replicas == old.target
        assert set(old.joining) <= set(new.isr) <= set(old.target)
        seen.add("completed")
    else:
        assert (new.replicas, new.target, new.joining) == (old.replicas, old.target, old.joining)
    if old.target and new.target:
        assert new.original == old.original
