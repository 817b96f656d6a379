"""A driver's cache of the metadata between its runs (KIP-630, "Loading Snapshots": observers)."""

from __future__ import annotations

import hashlib
import random
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from stratalog.engine.config.cluster_file import load_cluster_file
from stratalog.engine.metadata.dump import dump
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from stratalog.engine.metadata.records import VoterId
from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.engine.quorum.bootstrap import find_log
from stratalog.engine.quorum.cache import SAVE_AFTER, cache_file, load_cache, save_cache, structure
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.repeated import BatchRecords
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.upkeep import keep_up
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.removal import CommittedRule, Rule
from tests.unit.cluster_harness import LiveCluster
from tests.unit.metadata_harness import Metadata, an_id
from tests.unit.metadata_histories import random_history
from tests.unit.quorum_harness import CLUSTER, Quorum


def filled(quorum: Quorum, commits: int) -> LogState:
    """The log after this number of commits."""
    client = quorum.client()
    for value in range(1, commits + 1):
        client.submit(AlterConfigs(None, {"segment.bytes": str(value)}))
    return quorum.log().committed_log().state


def remembered(folder: Path, state: LogState) -> LogState:
    """The state after writing and reading the file."""
    notes: list[str] = []
    save_cache(folder, CLUSTER, state, notes.append)
    loaded = load_cache(folder, CLUSTER, notes.append)
    assert notes == []
    return loaded


def test_the_cache_returns_the_stored_state(tmp_path: Path) -> None:
    quorum = Quorum(3)
    state = filled(quorum, 5)
    assert remembered(tmp_path, state) == state
    keep_up(quorum.log(), quorum.clock, lag_ms=0)
    state = quorum.log().committed_log().state
    assert state.start > 0
    assert remembered(tmp_path / "new", state) == state


def test_nothing_of_a_log_is_forgotten(tmp_path: Path) -> None:
    """All values differ from their defaults: a new field that is not cached makes this fail."""
    image = replace(
        large(3),
        voters=(VoterId(2, an_id(2)),),
        replaced=(3,),
        configs={"segment.ms": "2"},
        rules={an_id(5): {0: (CommittedRule(Rule(2, 7, 3), 11),)}},
        erasures={an_id(5): {0: (Erasure(3, ((1, 2), (5, 9))),)}},
        next_offset=13,
    )
    state = LogState(
        image=image,
        lineage=Lineage(((3, 0), (7, 10))),
        epoch=7,
        start=9,
        files=frozenset({DataName(9, None, 3), DataName(10, None, 7)}),
        appended_ms=5,
        signed=True,
        latest=(BatchRecords(DataName(10, None, 7), (b"{}",), 5),),  # opening reads this batch to see later ones
    )
    for found, default in ((state, LogState()), (image, ClusterImage())):
        same = [
            field.name for field in fields(default) if getattr(found, field.name) == getattr(default, field.name)
        ]
        assert same == []
    assert remembered(tmp_path, state) == state


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), cut=st.integers(0, 300), again=st.integers(0, 300))
def test_a_fold_in_one_go_equals_a_fold_that_was_remembered_in_between(seed: int, cut: int, again: int) -> None:
    """The fold runs twice, so that the cached state is changed and cached again."""
    history = random_history(random.Random(seed), 90)
    first, second = sorted([cut, again])
    with tempfile.TemporaryDirectory() as folder:

        def cached(image: ClusterImage) -> ClusterImage:
            return remembered(Path(folder), LogState(image=image)).image

        image = apply(ClusterImage(cluster_id=CLUSTER), 0, history.records[:first])
        assert cached(image) == image
        image = apply(cached(image), image.next_offset, history.records[first:second])
        assert cached(image) == image
        assert list(dump(cached(image))) == list(dump(image))
        after = apply(cached(image), image.next_offset, history.records[second:])
    assert after == apply(ClusterImage(cluster_id=CLUSTER), 0, history.records)


def large(topics: int) -> ClusterImage:
    """Topics in the order of their names and ids."""
    one = Metadata().image.topic("t").partitions[0]
    partitions = tuple(structs.replace(one, partition=p) for p in range(3))
    ids = {f"t{number:03}": an_id(number) for number in range(topics)}
    images = {
        topic_id: TopicImage(
            name=name, topic_id=topic_id, key_schema=None, value_schema=None, partitions=partitions
        )
        for name, topic_id in ids.items()
    }
    return replace(Metadata().image, cluster_id=CLUSTER, topics=images, topic_ids=ids)


def test_a_cache_of_another_release_is_ignored_before_anything_of_it_is_used(tmp_path: Path) -> None:
    save_cache(tmp_path, CLUSTER, LogState(image=large(2)), pytest.fail)
    assert load_cache(tmp_path, CLUSTER, pytest.fail).image == large(2)
    path = cache_file(tmp_path, CLUSTER)
    data = path.read_bytes()[16:]
    data = data.replace(msgspec.msgpack.decode(data)["layout"].encode(), b"0" * 32)
    path.write_bytes(hashlib.blake2b(data, digest_size=16).digest() + data)
    notes: list[str] = []
    assert load_cache(tmp_path, CLUSTER, notes.append) == LogState()
    assert "another release" in notes[0]


@pytest.mark.slow
def test_opening_with_a_cache_costs_one_listing_per_voter_of_a_majority_and_the_tail(tmp_path: Path) -> None:
    quorum = Quorum(3)
    cached = remembered(tmp_path, filled(quorum, 30))
    before = {broker: store.counts.snapshot() for broker, store in quorum.stores.items()}
    found = find_log(CLUSTER, [1, 2, 3], quorum.stores, cached=cached)
    assert found.state == cached
    spent = [store.counts - before[broker] for broker, store in quorum.stores.items()]
    assert [one.lists for one in spent] == [1, 1, 0]
    assert sum(one.reads for one in spent) == 2 * 2 + 1  # broker.json twice, and the last batch
    image = filled(quorum, 2).image
    assert find_log(CLUSTER, [1, 2, 3], quorum.stores, cached=cached).state.image == image


@pytest.mark.slow
@pytest.mark.parametrize("snapshots", [False, True])
def test_a_stale_cache_is_caught_up(tmp_path: Path, snapshots: bool) -> None:
    """This works even if the log after the cached state has been deleted meanwhile."""
    quorum = Quorum(3)
    cached = remembered(tmp_path, filled(quorum, 2))
    for _ in range(3):
        image = filled(quorum, 3).image
        if snapshots:
            keep_up(quorum.log(), quorum.clock, lag_ms=10**12)
            image = quorum.log().read()
    assert find_log(CLUSTER, [1, 2, 3], quorum.stores, cached=cached).state.image == image


def test_a_cache_of_another_history_is_ignored_with_a_note(tmp_path: Path) -> None:
    """The cluster was restored from an older copy, and has another history."""
    cached = remembered(tmp_path, filled(Quorum(3), 4))
    other = Quorum(3)
    other.log(1).claim()
    image = filled(other, 2).image
    notes: list[str] = []
    found = find_log(CLUSTER, [1, 2, 3], other.stores, cached=cached, note=notes.append)
    assert found.state.image == image
    log = MetadataLog(
        CLUSTER,
        found.voters,
        clock=other.clock,
        rng=random.Random(1),
        new_id=other.new_id,
        stores=other.stores,
        hint=cached,
        note=notes.append,
    )
    assert log.read() == image
    assert any("belongs to another history" in note for note in notes)


@pytest.mark.slow
def test_damage_anywhere_is_found_and_the_cache_ignored_with_a_note(tmp_path: Path) -> None:
    state = filled(Quorum(), 3)
    save_cache(tmp_path, CLUSTER, state, pytest.fail)
    path = cache_file(tmp_path, CLUSTER)
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        notes: list[str] = []
        assert load_cache(tmp_path, CLUSTER, notes.append) == LogState(), position
        assert "is ignored" in notes[0]
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert load_cache(tmp_path, CLUSTER, lambda note: None) == LogState()
    path.write_bytes(whole)
    path.rename(cache_file(tmp_path, "other"))
    notes = []
    assert load_cache(tmp_path, "other", notes.append) == LogState()
    assert "it belongs to cluster 'c'" in notes[0]


@pytest.mark.parametrize("kind", [BrokerImage, TopicImage, PartitionImage, VoterId, CommittedRule, Rule, Erasure])
def test_a_cache_of_another_structure_has_another_layout(kind: type[msgspec.Struct]) -> None:
    """A release with one field more would read the field's default from an older cache."""
    described = str(structure())
    assert [one.name for one in structs.fields(kind) if f"'{one.encode_name}'" not in described] == []


def test_a_folder_that_cannot_be_written_is_noted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    notes: list[str] = []
    save_cache(tmp_path / "file", CLUSTER, filled(Quorum(), 1), notes.append)
    assert "the metadata could not be cached in" in notes[0]


@pytest.mark.slow
def test_the_cluster_file_names_the_folder(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    assert live.driver().file.cache is None
    live.file.write_text(live.file.read_text().replace("voters = [1]", 'voters = [1]\ncache = "memory"'))
    opened = live.driver()
    assert opened.file.cache == tmp_path / "memory"
    path = cache_file(tmp_path / "memory", "c")
    written = path.read_bytes()
    for number in range(SAVE_AFTER):
        opened.topics.alter_configs(None, {"segment.bytes": str(number + 1)})
    assert live.driver().image == opened.image
    assert path.read_bytes() == written, "what it spares is enough"
    opened.topics.alter_configs(None, {"segment.bytes": "77"})
    assert live.driver().image == opened.image
    assert path.read_bytes() != written
    path.write_bytes(written[:-1])
    driver = live.driver()
    assert driver.image == opened.image
    assert any("is ignored" in warning for warning in driver.file.warnings)


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("~/cache", "are not expanded"),
        ("$HOME/cache", "are not expanded"),
        ("s3://bucket/cache", "write the path of a folder of this machine"),
    ],
)
def test_a_cache_is_a_folder_of_this_machine(tmp_path: Path, folder: str, why: str) -> None:
    live = LiveCluster(tmp_path)
    live.file.write_text(live.file.read_text().replace("voters = [1]", f'voters = [1]\ncache = "{folder}"'))
    with pytest.raises(InvalidCallError, match=why):
        load_cluster_file(live.file)
