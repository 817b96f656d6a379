"""What a driver remembers of the metadata between its runs (KIP-630, "Loading Snapshots": observers)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.cluster_file import load_cluster_file
from engine.metadata.topic_commands import AlterConfigs
from engine.quorum.bootstrap import find_log
from engine.quorum.cache import SAVE_AFTER, cache_file, load_cache, save_cache
from engine.quorum.log import MetadataLog
from engine.quorum.state import LogState
from engine.quorum.upkeep import keep_up
from partitions.errors import InvalidCallError
from tests.unit.cluster_harness import LiveCluster
from tests.unit.quorum_harness import CLUSTER, Quorum


def filled(quorum: Quorum, commits: int) -> LogState:
    """The log after so many commits."""
    client = quorum.client()
    for value in range(1, commits + 1):
        client.submit(AlterConfigs(None, {"segment.bytes": str(value)}))
    return quorum.log().settle().state


def remembered(folder: Path, state: LogState) -> LogState:
    """Through the file."""
    notes: list[str] = []
    save_cache(folder, CLUSTER, state, notes.append)
    loaded = load_cache(folder, CLUSTER, notes.append)
    assert notes == []
    return loaded


def test_what_is_remembered_is_what_was_known(tmp_path: Path) -> None:
    quorum = Quorum(3)
    state = filled(quorum, 5)
    assert remembered(tmp_path, state) == state
    keep_up(quorum.log(), quorum.clock, lag_ms=0)
    state = quorum.log().settle().state
    assert state.start > 0
    assert remembered(tmp_path / "new", state) == state


def test_opening_with_a_cache_costs_one_listing_a_voter_and_the_tail(tmp_path: Path) -> None:
    """The issue: "so that opening a cluster costs one listing and the tail"."""
    quorum = Quorum(3)
    cached = remembered(tmp_path, filled(quorum, 30))
    before = {broker: store.counts.snapshot() for broker, store in quorum.stores.items()}
    found = find_log(CLUSTER, [1, 2, 3], quorum.stores, cached=cached)
    assert found.state == cached
    spent = [store.counts - before[broker] for broker, store in quorum.stores.items()]
    assert [one.lists for one in spent] == [1, 1, 1]
    assert sum(one.reads for one in spent) == 3 * 2 + 1  # broker.json twice, and the last batch
    image = filled(quorum, 2).image
    assert find_log(CLUSTER, [1, 2, 3], quorum.stores, cached=cached).state.image == image


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_stale_cache_is_caught_up(tmp_path: Path, snapshots: bool) -> None:
    """Also when the log that follows it is deleted by now."""
    quorum = Quorum(3)
    cached = remembered(tmp_path, filled(quorum, 2))
    for _ in range(3):
        image = filled(quorum, 3).image
        if snapshots:
            keep_up(quorum.log(), quorum.clock, lag_ms=10**12)
            image = quorum.log().read()
    assert find_log(CLUSTER, [1, 2, 3], quorum.stores, cached=cached).state.image == image


def test_a_cache_of_another_history_is_ignored_with_a_note(tmp_path: Path) -> None:
    """The cluster was restored from an older copy, and went another way."""
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
    assert any("of another history" in note for note in notes)


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
    assert "it is of cluster 'c'" in notes[0]


def test_a_folder_that_cannot_be_written_is_noted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    notes: list[str] = []
    save_cache(tmp_path / "file", CLUSTER, filled(Quorum(), 1), notes.append)
    assert "the metadata is not remembered in" in notes[0]


def test_the_cluster_file_names_the_folder(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    assert live.driver().file.cache is None
    live.file.write_text(live.file.read_text().replace("voters = [1]", 'voters = [1]\ncache = "memory"'))
    opened = live.driver()
    assert opened.file.cache == tmp_path / "memory"
    path = cache_file(tmp_path / "memory", "c")
    written = path.read_bytes()
    for number in range(SAVE_AFTER):
        opened.alter_configs(None, {"segment.bytes": str(number + 1)})
    assert live.driver().image == opened.image
    assert path.read_bytes() == written, "what it spares is enough"
    opened.alter_configs(None, {"segment.bytes": "77"})
    assert live.driver().image == opened.image
    assert path.read_bytes() != written
    path.write_bytes(written[:-1])
    driver = live.driver()
    assert driver.image == opened.image
    assert any("is ignored" in warning for warning in driver.file.warnings)


@pytest.mark.parametrize("folder", ["~/cache", "$HOME/cache", "s3://bucket/cache"])
def test_a_cache_is_a_folder_of_this_machine(tmp_path: Path, folder: str) -> None:
    live = LiveCluster(tmp_path)
    live.file.write_text(live.file.read_text().replace("voters = [1]", f'voters = [1]\ncache = "{folder}"'))
    with pytest.raises(InvalidCallError, match="write the path of a folder of this machine"):
        load_cluster_file(live.file)
