"""Bad input and damaged storage: each fault is one clear error that names the thing, and nothing changes."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.replication.log_end import LOOK_AGAIN_MS
from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    InconsistentClusterIdError,
    InvalidCallError,
    InvalidConfigError,
    InvalidReplicationFactorError,
    LogDirError,
    LogGapError,
    NoMajorityError,
    StratalogError,
    TopicAlreadyExistsError,
    UnknownBrokerError,
    UnknownTopicOrPartitionError,
    UnsupportedStoreError,
)
from stratalog.partitions.paths import join
from stratalog.partitions.register import sealed
from stratalog.partitions.store import Store, StoreOptions
from stratalog.partitions.store.local import LocalStore
from tests.unit.cluster_harness import LiveCluster, codes, the_failure
from tests.unit.harness import batch
from tests.unit.tampering import Spot, spot


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Three brokers; ``t`` holds a to e, one file each, on all of them."""
    made = LiveCluster(tmp_path)
    made.topic()
    made.fill("abcde")
    return made


@pytest.fixture
def disks(tmp_path: Path) -> LiveCluster:
    """Three brokers on folders; ``t`` holds a on all of them."""
    made = LiveCluster(tmp_path, on_disk=True)
    made.topic()
    made.append(["a"])
    return made


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------------- topics, configs


@pytest.mark.parametrize(
    "who",
    [{"producer": ""}, {"producer": "p"}, {"producer": "", "sequence": 7}, {"sequence": 0}, {"producer_epoch": 0}],
)
def test_an_append_with_an_incomplete_producer_is_refused(live: LiveCluster, who: dict[str, Any]) -> None:
    """Otherwise each retry would append the records again (KIP-98: a sequence belongs to a producer)."""
    with live.unchanged(), pytest.raises(InvalidCallError, match="producer"):
        live.cluster.append_batches("t", {0: [batch(["f"])]}, **who)


def test_an_unknown_broker_is_refused(live: LiveCluster) -> None:
    with live.unchanged(), pytest.raises(UnknownBrokerError, match="broker 9 is not registered"):
        live.cluster.replicate(brokers=[2, 9])


def _each_operation(cluster: Cluster) -> list[Callable[[], object]]:
    return [
        lambda: cluster.replicate("u"),
        lambda: cluster.merge(["t", "u"]),
        lambda: cluster.tier("u"),
        lambda: cluster.retain("u"),
        lambda: cluster.verify("u"),
        lambda: cluster.describe("u"),
        lambda: cluster.topics.delete("u"),
        lambda: cluster.plan_read("u"),
        lambda: cluster.topics.alter_configs("u", {"retention.ms": "1"}),
        lambda: cluster.append_batches("u", {}),
    ]


def test_every_operation_names_an_unknown_topic(live: LiveCluster) -> None:
    """Bad input: "unknown or deleted topic"."""
    with live.unchanged():
        for operation in _each_operation(live.cluster):
            with pytest.raises(UnknownTopicOrPartitionError, match="'u' does not exist, or was deleted"):
                operation()


def test_a_deleted_topic_is_an_unknown_one(live: LiveCluster) -> None:
    live.topic("u")
    live.cluster.topics.delete("u").raise_for_failures()
    test_every_operation_names_an_unknown_topic(live)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"retention.msec": "1"}, "topic 't2': unknown config 'retention.msec'; did you mean 'retention.ms'"),
        ({"retention.ms": "soon"}, "retention.ms = 'soon' is not valid"),
        ({"segment.bytes": "0"}, "segment.bytes = '0' is not valid: it takes at least 1"),
        (
            {"retention.ms": 2**63},
            "retention.ms = '9223372036854775808' is not valid: it takes at most 9223372036854",
        ),
        ({"compression.type": "brotli"}, "it takes one of zstd"),
        ({"num.partitions": "3"}, "num.partitions is a config of the cluster, not of a topic"),
        (
            {"retention.ms": "5", "local.retention.ms": "9"},
            "brokers cannot keep records that the log has already deleted",
        ),
    ],
)
def test_a_config_that_is_wrong_is_named_with_the_nearest_right_one(
    live: LiveCluster, configs: dict[str, str], message: str
) -> None:
    """Bad input: "an unknown config key (name the nearest) or value"."""
    with live.unchanged():
        with pytest.raises(InvalidConfigError, match=message):
            live.cluster.topics.create("t2", configs=configs)
        with pytest.raises(InvalidConfigError, match=message.replace("t2", "t")):
            live.cluster.topics.alter_configs("t", configs)


def test_topics_that_cannot_be_are_refused(live: LiveCluster) -> None:
    with live.unchanged():
        with pytest.raises(TopicAlreadyExistsError, match="'t'"):
            live.cluster.topics.create("t")
        with pytest.raises(InvalidReplicationFactorError, match="4"):
            live.cluster.topics.create("t2", replication_factor=4)
        with pytest.raises(InvalidCallError, match="'a/b' is not valid"):
            live.cluster.topics.create("a/b")
        with pytest.raises(InvalidCallError):
            live.cluster.topics.create("t2", partitions=0)
        with pytest.raises(InvalidCallError, match="__cluster_metadata"):
            live.cluster.topics.delete("__cluster_metadata")
        with pytest.raises(InvalidCallError, match="acks is 'some'"):
            live.append(["a"], acks="some")


# ------------------------------------------------------------------------------------ log dirs


def _file(folder: Path, *log_dirs: str, cluster_id: str = "c") -> Path:
    file = folder / "other.toml"
    brokers = [f'[[brokers]]\nid = {n}\nlog_dir = "{d}"' for n, d in enumerate(log_dirs, start=1)]
    file.write_text("\n".join([f'[cluster]\nid = "{cluster_id}"\nvoters = [1]', *brokers]))
    return file


def test_a_log_dir_that_does_not_exist_is_named_and_no_other_is_formatted(tmp_path: Path) -> None:
    """Bad input: "a log dir that does not exist". The folder may be a volume that is not mounted."""
    (tmp_path / "x1").mkdir()
    with pytest.raises(LogDirError, match="x2"):
        Cluster.format(_file(tmp_path, "x1", "x2"))
    assert contents(tmp_path / "x1") == {}
    assert not (tmp_path / "x2").exists()


def test_a_log_dir_that_is_a_file_or_cannot_be_written_is_named(tmp_path: Path) -> None:
    """(For root no folder is unwritable; /proc is for all users.)"""
    (tmp_path / "x1").mkdir()
    (tmp_path / "x2").write_text("a file")
    with pytest.raises(LogDirError, match="x2"):
        Cluster.format(_file(tmp_path, "x1", "x2"))
    with pytest.raises(LogDirError, match="/proc/self/fdinfo"):
        Cluster.format(_file(tmp_path, "x1", "/proc/self/fdinfo"))
    assert contents(tmp_path / "x1") == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_log_dir_without_permission_to_write_is_named(tmp_path: Path) -> None:
    for name in ("x1", "x2"):
        (tmp_path / name).mkdir()
    (tmp_path / "x2").chmod(0o555)
    with pytest.raises(LogDirError, match="x2"):
        Cluster.format(_file(tmp_path, "x1", "x2"))
    assert contents(tmp_path / "x1") == {}


def test_a_log_dir_of_another_cluster_or_broker_is_named(disks: LiveCluster) -> None:
    """Bad input: "belongs to another cluster or another broker"."""
    (disks.folder / "x1").mkdir()
    with disks.unchanged():
        with pytest.raises(InconsistentClusterIdError, match="b2 of broker 2 belongs to cluster 'c', not to 'd'"):
            Cluster.format(_file(disks.folder, "x1", "b2", cluster_id="d"))
        assert contents(disks.folder / "x1") == {}
        with pytest.raises(LogDirError, match="b3 of broker 2 belongs to broker 3"):
            Cluster.format(_file(disks.folder, "b1", "b3"))
        with pytest.raises(LogDirError, match="b2 of broker 1 belongs to broker 2"):
            Cluster.open(_file(disks.folder, "b2", "b3"))


@pytest.mark.parametrize("second", ["x1", "x1/", "./x1", "x1/inner", "link"])
def test_two_brokers_on_one_folder_are_found_in_the_file(tmp_path: Path, second: str) -> None:
    """Bad input: "two brokers on one folder", by whatever name."""
    (tmp_path / "x1" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "x1")
    with pytest.raises(InvalidCallError, match="broker 1 and broker 2 share storage"):
        Cluster.format(_file(tmp_path, "x1", second))
    assert contents(tmp_path / "x1") == {}


def test_a_folder_that_is_copied_to_another_brokers_is_found(disks: LiveCluster) -> None:
    shutil.rmtree(disks.root(3))
    shutil.copytree(disks.root(2), disks.root(3))
    other = disks.driver()
    report = other.append_batches("t", {0: [batch(["b"])]}).raise_for_failures()
    assert any("b3 of broker 3 belongs to broker 2" in note for note in report.notes)
    assert disks.isr() == {1, 2}
    assert disks.read() == {0: ["a", "b"]}


def test_a_root_of_another_cluster_is_fenced_and_the_others_continue(disks: LiveCluster) -> None:
    stranger = disks.root(3) / "broker.json"
    stranger.write_bytes(stranger.read_bytes().replace(b'"c"', b'"d"'))
    report = disks.driver().replicate().raise_for_failures()
    assert any("belongs to cluster 'd', not to 'c'" in note for note in report.notes)
    assert disks.cluster.image.brokers[3].fenced
    disks.append(["b"]).raise_for_failures()
    assert disks.read() == {0: ["a", "b"]}


def test_a_typo_in_the_cluster_file_is_named_with_its_place(disks: LiveCluster) -> None:
    """Bad input: "a cluster file with a typo"."""
    disks.file.write_text(disks.file.read_text().replace('log_dir = "b2"', 'logdir = "b2"'))
    with (
        disks.unchanged(),
        pytest.raises(InvalidCallError, match=r"brokers\[1\]: unknown key 'logdir'; did you mean"),
    ):
        Cluster.open(disks.file)
    with pytest.raises(InvalidCallError, match=r"nowhere\.toml cannot be read"):
        Cluster.open(disks.folder / "nowhere.toml")


def test_a_cluster_that_was_never_formatted_is_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "x1").mkdir()
    with pytest.raises(InvalidCallError, match=r"create it with Cluster\.format"):
        Cluster.open(_file(tmp_path, "x1"))
    assert contents(tmp_path / "x1") == {}


def test_without_a_voter_there_is_no_answer_and_no_guess(disks: LiveCluster) -> None:
    shutil.rmtree(disks.root(1))
    with pytest.raises((NoMajorityError, InvalidCallError), match=r"voter|metadata"):
        disks.driver()
    disks.root(1).mkdir()
    door = with_parts(Cluster, opener=disks.open_root)
    for make in (door.plan_format, door.format):
        with pytest.raises(InvalidCallError, match="no voter has its metadata"):
            make(disks.file)
        assert contents(disks.root(1)) == {}, "it may be where a volume is not mounted"


class Overwriting(LocalStore):
    """A store without exclusive create: the last writer wins."""

    def create(self, name: str, data: bytes) -> bool:
        self.delete([name])
        return super().create(name, data)


def test_a_store_without_exclusive_create_is_refused(tmp_path: Path) -> None:
    """Bad input; protocol, rule 1."""
    for name in ("x1", "x2"):
        (tmp_path / name).mkdir()

    def opener(uri: str, options: StoreOptions, clock: object) -> Store:
        folder = uri.removeprefix("file://")
        return Overwriting(folder) if folder.endswith("x2") else LocalStore(folder)

    with pytest.raises(UnsupportedStoreError, match="x2 is a store without exclusive create"):
        with_parts(Cluster, opener=opener).format(_file(tmp_path, "x1", "x2"))
    assert contents(tmp_path / "x1") == contents(tmp_path / "x2") == {}


# --------------------------------------------------------------------------- damage in log dirs


def parquet(columns: dict[str, list[int]]) -> bytes:
    """A Parquet file of another program."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


DAMAGES: dict[str, Callable[[Spot], None]] = {
    "truncated": lambda file: file.replace(file.read()[:-100]),
    "a bit of the data flipped": lambda file: file.flip(30),
    "a bit of the footer flipped": lambda file: file.flip(-200),
    "foreign": lambda file: file.replace(parquet({"x": [1]})),
    "no Parquet": lambda file: file.replace(b"hello" * 100),
    "empty": lambda file: file.replace(b""),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broker", "index"), [(1, 1), (2, 4)], ids=["in the middle of the leader", "the last one of a follower"]
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_found_by_verify_once_and_named(
    live: LiveCluster, damage: str, index: int, broker: int
) -> None:
    """Bad input: "a truncated, bit-flipped or foreign Parquet file in a log dir; a missing footer"."""
    file = spot(live, broker, index)
    DAMAGES[damage](file)
    with live.unchanged():
        report = live.driver().verify(deep=True)
        assert codes(report) == {"CORRUPT_SEGMENT": 1}
        assert file.name in the_failure(report)
        assert f"b{broker}" in the_failure(report)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_when_it_is_merged_and_a_whole_replica_merges(
    live: LiveCluster, damage: str
) -> None:
    live.cluster.topics.alter_configs("t", {"segment.merge.min.files": "2"})
    file = spot(live, 1, 1)
    DAMAGES[damage](file)
    report = live.driver().merge().raise_for_failures()
    assert any(file.name in note and "broker 1 leaves the ISR" in note for note in report.notes)
    assert live.leader() != 1
    assert live.read() == {0: list("abcde")}
    assert file.read() == live.store(live.leader()).read(spot_of(live, file).path), "it was replaced at once"


def spot_of(live: LiveCluster, file: Spot) -> Spot:
    """A foreign file replaces the leader's file of the same name."""
    return Spot(live.store(live.leader()), live.replica(live.leader()).path(file.name))


@pytest.mark.parametrize("damage", [name for name in DAMAGES if "of the data" not in name])
def test_a_damaged_file_is_named_when_a_read_is_planned(live: LiveCluster, damage: str) -> None:
    """Spark detects a flipped bit in the records themselves, by the checksums of the pages."""
    file = spot(live, 1, 1)
    DAMAGES[damage](file)
    with live.unchanged(), pytest.raises(CorruptSegmentError, match=file.name):
        live.driver().plan_read("t")


def test_a_file_that_is_not_of_the_log_is_found_by_verify_and_changes_nothing_else(live: LiveCluster) -> None:
    stranger = Spot(live.store(1), join(live.replica(1).folder, "part-00000.snappy.parquet"))
    stranger.replace(parquet({"x": [1]}))
    live.append(["f"]).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: list("abcdef")}
    with live.unchanged():
        assert stranger.name in the_failure(live.cluster.verify())


def _try(action: Callable[[], object]) -> StratalogError:
    with pytest.raises(StratalogError) as caught:
        action()
    return caught.value


def test_a_file_that_is_missing_in_the_middle_of_the_leader_is_a_gap(live: LiveCluster) -> None:
    """Bad input: "a gap". A listing alone cannot show the gap (the end of an append follows from the next file);
    footers and the followers' files show it. Nothing is acknowledged until it is repaired.
    """
    live.cluster.topics.alter_configs("t", {"segment.merge.min.files": "2"})
    file = spot(live, 1, 2)
    file.remove()
    with live.unchanged():
        error = _try(lambda: live.cluster.plan_read("t"))
        assert isinstance(error, LogGapError)
        assert "ends at offset 2, but the next file starts at 3" in str(error)
        report = live.cluster.verify()
        assert set(codes(report)) == {"LOG_GAP"}
        assert all("b1" in f.message or "t-0 on broker 1" in f.message for f in report.failures)
    live.clock.advance_ms(LOOK_AGAIN_MS)
    report = live.append(["f"]).raise_for_failures()
    assert any("broker 1 leaves the ISR" in note for note in report.notes)
    assert live.leader() != 1
    assert live.read() == {0: list("abcdef")}


def test_a_file_that_is_missing_at_the_end_of_the_leader_is_committed_data_lost(live: LiveCluster) -> None:
    """Protocol, section 1: "it is not silently shorter"."""
    spot(live, 1, 4).remove()
    with live.unchanged():
        error = _try(lambda: live.cluster.plan_read("t"))
        assert isinstance(error, CorruptionError)
        assert "the high watermark reached 5, but the log ends at 4" in str(error)
        assert set(codes(live.cluster.verify())) == {"CORRUPT_MESSAGE"}
    live.append(["f"]).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: list("abcdef")}
    assert live.data(1) == live.data(2)


def test_a_gap_of_a_follower_is_healed_by_replicate(live: LiveCluster) -> None:
    """Protocol, section 3, step 4: copy what is missing, in order."""
    file = spot(live, 2, 2)
    content = file.read()
    file.remove()
    with live.unchanged():
        assert codes(live.cluster.verify()) == {"LOG_GAP": 1}
    live.cluster.replicate().raise_for_failures()
    assert file.read() == content
    live.cluster.verify().raise_for_failures()


def test_a_name_with_two_sizes_stops_the_follower(live: LiveCluster) -> None:
    """Protocol, section 1: "a name with two sizes is corruption and is reported"."""
    file = spot(live, 2, 2)
    file.replace(file.read() + b"x")
    report = live.cluster.replicate(check=False)
    assert file.name in the_failure(report)
    assert "heal" in the_failure(report)
    assert live.isr() == {1, 3}


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"cluster_id": 3}'])
def test_a_broker_file_that_cannot_be_understood_is_named(disks: LiveCluster, content: bytes) -> None:
    path = disks.root(2) / "broker.json"
    path.write_bytes(content)
    report = disks.cluster.replicate().raise_for_failures()
    assert any("b2/broker.json is not a valid broker.json" in note for note in report.notes)
    assert disks.cluster.image.brokers[2].fenced
    assert disks.isr() == {1, 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [b"", b"[[1,0]]", sealed(b"[[1,0],[1,3]]"), sealed(b"[[2,0]]"), sealed(b"not json")]
)
def test_an_epoch_file_that_contradicts_itself_is_named(disks: LiveCluster, content: bytes) -> None:
    """Protocol, section 1: "corruption, call a human"."""
    (path,) = disks.root(2).rglob("*.epoch")
    path.write_bytes(content)
    with disks.unchanged():
        report = disks.driver().verify()
        assert codes(report) == {"CORRUPT_MESSAGE": 1}
        assert path.name in the_failure(report)
