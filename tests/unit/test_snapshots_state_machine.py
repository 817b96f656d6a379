"""The laws of state machines, on a small one: topics with configs (KIP-630, "Type of State Machines and
Operations": "events/deltas").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.store.memory import MemoryStore
from stratalog.snapshots.state_machine import RECORDS_AT_ONCE, Codec, StateMachine, load_dump, write_dump
from tests.unit.snapshot_files import read, writer
from tests.unit.state_machine_laws import Subject, check_laws


class Create(msgspec.Struct, frozen=True, tag=True):
    """A topic begins, without configs."""

    topic: str


class SetConfig(msgspec.Struct, frozen=True, tag=True):
    """Sets a topic's config if the topic exists."""

    topic: str
    key: str
    value: int


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Deletes a topic and its configs: one event for many records."""

    topic: str


Event = Create | SetConfig | Delete


class TopicRecord(msgspec.Struct, frozen=True):
    """A topic in a snapshot; no event of the log has this form."""

    topic: str
    configs: dict[str, int]


@dataclass(frozen=True)
class Topics:
    topics: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    next_offset: int = 0

    def apply(self, offset: int, records: Iterable[Event]) -> Topics:
        topics = {name: dict(configs) for name, configs in self.topics.items()}
        for record in records:
            match record:
                case Create(topic):
                    topics.setdefault(topic, {})
                case SetConfig(topic, key, value) if topic in topics:
                    topics[topic][key] = value
                case Delete(topic):
                    topics.pop(topic, None)
            offset += 1
        return Topics(topics, offset)

    def dump(self) -> Iterator[TopicRecord]:
        for name, configs in sorted(self.topics.items()):
            yield TopicRecord(name, dict(sorted(configs.items())))

    @classmethod
    def load(cls, records: Iterable[TopicRecord], offset: int) -> Topics:
        return cls({record.topic: record.configs for record in records}, offset)


def decode(key: bytes | None, value: bytes | None) -> TopicRecord:
    try:
        return msgspec.json.decode(value or b"", type=TopicRecord)
    except msgspec.DecodeError as error:
        raise CorruptionError(f"no record of a topic: {value!r}") from error


CODEC: Codec[TopicRecord] = Codec(lambda record: (record.topic.encode(), msgspec.json.encode(record)), decode)
SUBJECT = Subject(Topics(), Topics.load, CODEC)

names = st.sampled_from("ab")
events = st.one_of(
    st.builds(Create, names),
    st.builds(SetConfig, names, st.sampled_from("xy"), st.integers(0, 3)),
    st.builds(Delete, names),
)
logs = st.lists(events, max_size=20)


def test_a_machine_has_the_shape() -> None:
    machine: StateMachine[Event, TopicRecord] = Topics()
    assert machine.apply(0, [Create("a")]).next_offset == 1


@pytest.mark.slow
@settings(max_examples=60)
@given(logs, st.lists(st.integers(0, 20), max_size=4))
def test_one_fold_equals_a_fold_in_steps_with_snapshots_anywhere(log: list[Event], cuts: list[int]) -> None:
    check_laws(SUBJECT, log, cuts)


def test_a_topic_that_is_deleted_and_recreated_has_none_of_its_old_configs() -> None:
    log: list[Event] = [Create("a"), SetConfig("a", "x", 1), Delete("a"), Create("a"), SetConfig("a", "y", 2)]
    for cut in range(len(log) + 1):
        check_laws(SUBJECT, log, [cut])
    assert Topics().apply(0, log).topics == {"a": {"y": 2}}


class Forgetful(Topics):
    """A machine with a bug: a topic of an earlier batch returns with the next one."""

    def apply(self, offset: int, records: Iterable[Event]) -> Topics:
        whole = super().apply(offset, records)
        return Forgetful({**self.topics, **whole.topics}, whole.next_offset)

    @classmethod
    def load(cls, records: Iterable[TopicRecord], offset: int) -> Topics:
        return cls(super().load(records, offset).topics, offset)


def test_the_laws_catch_a_machine_that_takes_batches_for_more_than_they_are() -> None:
    log = [Create("a"), SetConfig("a", "x", 1), Delete("a")]
    with pytest.raises(AssertionError):
        check_laws(Subject(Forgetful(), Forgetful.load, CODEC), log, [2])


def test_a_dump_is_written_a_few_thousand_records_at_a_time() -> None:
    """The records of a large state are never all in memory."""
    waiting = longest = 0

    def records() -> Iterator[TopicRecord]:
        nonlocal waiting, longest
        for n in range(2 * RECORDS_AT_ONCE + 1):
            waiting += 1
            longest = max(longest, waiting)
            yield TopicRecord(str(n), {})

    class Target:
        def append_rows(self, rows: list[tuple[bytes | None, bytes | None]]) -> None:
            nonlocal waiting
            waiting -= len(rows)

    assert write_dump(records(), CODEC, Target()) == 2 * RECORDS_AT_ONCE + 1
    assert (longest, waiting) == (RECORDS_AT_ONCE, 0)


def test_a_record_that_is_invalid_is_corruption() -> None:
    store = MemoryStore()
    with writer(store) as target:
        target.append([b"noise"])
        target.freeze()
    with pytest.raises(CorruptionError, match="no record of a topic: b'noise'"):
        load_dump(read(store).rows(), 0, CODEC, Topics.load)
