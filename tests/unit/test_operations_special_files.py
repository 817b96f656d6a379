"""Links, FIFOs and sockets in one root of three, and in the remote tier: operations that need the path report it,
nothing outside the roots changes, and everything else continues."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.driver.report import Report
from stratalog.engine.replication.log_end import LOOK_AGAIN_MS
from stratalog.partitions.errors import LogDirError
from stratalog.partitions.paths import (
    CheckpointName,
    ClaimName,
    DataName,
    EpochName,
    LocalStartName,
    WatermarkName,
)
from stratalog.partitions.store.local import LocalStore
from tests.unit.cluster_harness import LiveCluster, report_of, the_failure
from tests.unit.special_files import FILES, contents, put

DAY_S = 24 * 60 * 60


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    made = LiveCluster(tmp_path, on_disk=True)
    made.topic()
    made.fill("ab")
    return made


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A foreign folder with old files, some of them with names of the log's files."""
    folder = tmp_path / "victim"
    for name in ["file", "0.7/file", "0.7/00000000000000000002.0000000001.parquet", "t/0.7/file"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"theirs")
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    return folder


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    before = contents(folder)
    yield
    assert contents(folder) == before


def replica_folder(live: LiveCluster, broker: int) -> Path:
    return live.root(broker) / live.replica(broker).folder


def failure_texts(report: Report) -> str:
    return "\n".join(map(str, report.failures))


# ------------------------------------------------------------------------------ of the review


def test_a_vacuum_deletes_nothing_where_a_linked_staging_folder_leads(live: LiveCluster, victim: Path) -> None:
    live.tiered("cold")
    for root in (live.root(2), live.remote):
        put("link", root / ".staging", victim)
    with untouched(victim):
        report = live.cluster.vacuum(check=False)
    assert {failure.item for failure in report.failures} == {"broker 2", "remote tier"}
    assert failure_texts(report).count(".staging") >= 2
    assert "symbolic link" in failure_texts(report)


def test_the_deletion_of_a_topic_empties_no_linked_folder(live: LiveCluster, victim: Path) -> None:
    folder = replica_folder(live, 2).parent
    aside = put("link", folder, victim)
    with untouched(victim), untouched(aside):
        report = live.cluster.topics.delete("t", check=False)
    assert the_failure(report).startswith("t on broker 2: ")
    assert str(folder) in the_failure(report)
    assert [row["place"] for row in report.rows] == ["broker 1", "broker 3"]
    assert "t" not in live.cluster.image.topic_ids


def test_the_deletion_of_a_tiered_topic_empties_no_linked_folder(live: LiveCluster, victim: Path) -> None:
    live.tiered("cold")
    live.append("ab", "cold")
    live.cluster.tier().raise_for_failures()
    folder = live.remote / f"cold-{live.cluster.image.topic('cold').topic_id}"
    put("link", folder / "0", victim)
    with untouched(victim):
        report = live.cluster.topics.delete("cold", check=False)
    assert the_failure(report).startswith("cold in the remote tier: ")
    assert f"{folder}/0" in the_failure(report)


@pytest.mark.parametrize("level", ["home", "topic", "replica"])
def test_a_follower_with_a_linked_folder_leaves_the_isr_and_gets_no_files(
    live: LiveCluster, victim: Path, level: str
) -> None:
    folder = {"replica": (own := replica_folder(live, 2)), "topic": own.parent, "home": own.parent.parent}[level]
    put("link", folder, victim)
    with untouched(victim):
        live.append("c").raise_for_failures()
        assert live.isr() == {1, 3}
        replicated = live.cluster.replicate(check=False)
    assert str(folder) in failure_texts(replicated)
    assert live.read() == {0: list("abc")}
    assert str(folder) in failure_texts(live.cluster.describe())
    assert str(folder) in failure_texts(live.cluster.verify())
    assert str(folder) in failure_texts(live.cluster.vacuum(check=False))


def test_a_follower_that_is_a_link_to_another_one_is_no_copy(live: LiveCluster) -> None:
    put("link", replica_folder(live, 2), replica_folder(live, 3))
    live.append("c").raise_for_failures()
    assert live.isr() == {1, 3}
    with untouched(replica_folder(live, 3)):
        assert "symbolic link" in failure_texts(live.cluster.verify(deep=True))


def test_a_leader_with_a_linked_folder_is_replaced(live: LiveCluster, victim: Path) -> None:
    leader = live.leader()
    put("link", replica_folder(live, leader), victim)
    with untouched(victim):
        live.append("c").raise_for_failures()
    assert live.leader() != leader
    assert live.read() == {0: list("abc")}


# ------------------------------------------------------------------------------ the files of a replica


@pytest.mark.sample(5)
@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("of", ["data", "epoch", "watermark"])
def test_an_object_that_is_no_file_takes_its_replica_out_until_it_is_removed(
    live: LiveCluster, victim: Path, kind: str, of: str
) -> None:
    listing = live.replica(2).list()
    name = {"data": listing.data[-1].name, "epoch": listing.epochs[-1][0], "watermark": listing.watermarks[-1]}[of]
    path = replica_folder(live, 2) / str(name)
    aside = put(kind, path, victim)
    live.clock.advance_ms(LOOK_AGAIN_MS)
    with untouched(victim):
        live.append("c").raise_for_failures()
        assert live.isr() == {1, 3}
        for report in (
            live.cluster.verify(deep=True),
            live.cluster.heal(check=False),
            live.cluster.vacuum(check=False),
        ):
            assert str(path) in failure_texts(report)
            assert {failure.item.partition(" on ")[2] or failure.item for failure in report.failures} == {
                "broker 2"
            }
    assert live.read() == {0: list("abc")}
    path.unlink()
    aside.rename(path)
    live.cluster.heal().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert live.isr() == {1, 2, 3}


def test_a_link_that_is_called_like_the_next_file_takes_its_replica_out(live: LiveCluster, victim: Path) -> None:
    """The foreign folder contains a name that the replica is going to need."""
    for name in (DataName(2, None, 1), EpochName(7), WatermarkName(3, 1), LocalStartName(1)):
        path = replica_folder(live, 3) / str(name)
        put("link", path, victim / "file")
        with untouched(victim):
            live.append("c").raise_for_failures()
            assert live.isr() == {1, 2}
        path.unlink()
        live.cluster.replicate().raise_for_failures()
        assert live.isr() == {1, 2, 3}


def test_foreign_links_next_to_our_files_do_no_harm_and_are_named(live: LiveCluster, victim: Path) -> None:
    link = replica_folder(live, 2) / "latest"
    put("link", link, victim)
    with untouched(victim):
        live.append("c").raise_for_failures()
        assert live.isr() == {1, 2, 3}
        for report in (live.cluster.verify(), live.cluster.vacuum(check=False)):
            assert f"{link} is a symbolic link" in the_failure(report)
    assert link.is_symlink()


def test_a_file_that_two_replicas_have_in_common_is_one_copy_less_and_healed(live: LiveCluster) -> None:
    name = live.replica(2).list().data[0].name
    one, other = (replica_folder(live, broker) / str(name) for broker in (2, 3))
    other.unlink()
    os.link(one, other)
    failure = the_failure(live.cluster.verify())
    assert f"{other}: offsets [0, 1): this is the same file as the copy of t-0 on broker 2" in failure
    live.cluster.heal().raise_for_failures()
    assert not os.path.samefile(one, other)
    live.cluster.verify(deep=True).raise_for_failures()


# ------------------------------------------------------------------------------ small files of a root


@pytest.mark.parametrize("kind", FILES)
def test_a_broker_without_a_file_for_broker_json_is_that_brokers_failure(
    live: LiveCluster, victim: Path, kind: str
) -> None:
    put(kind, live.root(3) / "broker.json", victim / "file")
    live.append("c").raise_for_failures()
    assert live.isr() == {1, 2}
    assert "broker.json" in failure_texts(live.cluster.describe())
    assert live.driver().image.topics
    assert live.read() == {0: list("abc")}


def test_another_follower_continues_while_one_has_its_staging_folder_linked(
    live: LiveCluster, victim: Path
) -> None:
    put("link", live.root(3) / ".staging", victim)
    with untouched(victim):
        live.append("c").raise_for_failures()
    assert live.isr() == {1, 2}


# ------------------------------------------------------------------------------ voters


@pytest.fixture
def three_voters(tmp_path: Path) -> Path:
    """A cluster file of three brokers that all vote, formatted."""
    lines = ['[cluster]\nid = "c"\nvoters = [1, 2, 3]\n']
    for broker in (1, 2, 3):
        (tmp_path / f"b{broker}").mkdir()
        lines.append(f'[[brokers]]\nid = {broker}\nlog_dir = "b{broker}"\n')
    file = tmp_path / "cluster.toml"
    file.write_text("\n".join(lines))
    Cluster.format(file).topics.create("t", replication_factor=3)
    return file


def voter_folder(file: Path, broker: int) -> Path:
    [folder] = file.with_name(f"b{broker}").glob("*/__cluster_metadata")
    return folder


@pytest.mark.sample(12)
@pytest.mark.parametrize("broker", [1, 2, 3])
@pytest.mark.parametrize("what", ["root/broker.json", ".staging", "home", "folder", "last file", "all files"])
@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_the_metadata_continues_without_one_voter(
    three_voters: Path, victim: Path, broker: int, what: str, kind: str
) -> None:
    folder = voter_folder(three_voters, broker)
    root = folder.parent.parent
    files = sorted(folder.glob("*.parquet"))
    paths = {
        "root/broker.json": [root / "broker.json"],
        ".staging": [root / ".staging"],
        "home": [folder.parent],
        "folder": [folder],
        "last file": files[-1:],
        "all files": files,
    }[what]
    for path in paths:
        put(kind, path, victim)
    with untouched(victim):
        cluster = Cluster.open(three_voters)
        cluster.topics.create("other", replication_factor=1)
        assert "other" in Cluster.open(three_voters).image.topic_ids
        vacuumed = cluster.vacuum(check=False)
    assert str(paths[0]) in failure_texts(vacuumed)


@pytest.mark.slow
@pytest.mark.parametrize("name", [ClaimName(2), ClaimName(50), DataName(99, None, 50), CheckpointName(99, 50)])
def test_a_link_that_is_called_like_something_of_a_voter_stops_nobody(
    three_voters: Path, victim: Path, name: ClaimName | DataName | CheckpointName
) -> None:
    """If a taken name that is not listed were claimed, the claim would be repeated forever."""
    put("dangling link", voter_folder(three_voters, 2) / str(name), victim)
    cluster = Cluster.open(three_voters)
    cluster.topics.create("other", replication_factor=1)
    assert "other" in Cluster.open(three_voters).image.topic_ids
    report = cluster.verify(["__cluster_metadata"])
    assert str(name) in failure_texts(report)


# ------------------------------------------------------------------------------ the remote tier


@pytest.fixture
def tiered(live: LiveCluster) -> Path:
    """The folder of a tiered topic; another one is beside it."""
    live.tiered("cold")
    live.tiered("other")
    live.append("ab", "cold")
    live.append("ab", "other")
    live.cluster.tier().raise_for_failures()
    return live.remote / f"cold-{live.cluster.image.topic('cold').topic_id}"


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("level", ["topic", "partition", "log", "entry", "segment"])
def test_a_link_in_the_remote_tier_is_followed_by_nobody(
    live: LiveCluster, tiered: Path, tmp_path: Path, level: str
) -> None:
    path = {
        "topic": tiered,
        "partition": tiered / "0",
        "log": tiered / "_delta_log",
        "entry": max((tiered / "_delta_log").glob("*.json")),
        "segment": min((tiered / "0").glob("*.parquet")),
    }[level]
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = contents(tmp_path / "elsewhere") if elsewhere.is_dir() else elsewhere.read_bytes()
    for topic in ("cold", "other"):
        live.append("cd", topic).raise_for_failures()
    reports = [
        live.cluster.tier(check=False),
        live.cluster.retain(check=False),
        live.cluster.vacuum(check=False),
        live.cluster.verify(deep=True),
    ]
    assert (contents(elsewhere) if elsewhere.is_dir() else elsewhere.read_bytes()) == before
    assert str(path) in "\n".join(map(failure_texts, reports))
    assert not any("other" in str(failure.item) for report in reports for failure in report.failures)
    assert live.read("other") == {0: list("abcd")}


# ------------------------------------------------------------------------------ everywhere


def everywhere(root: Path) -> dict[tuple[Path, str], Path]:
    """Every folder and every file of a root, the newest of each kind in each folder, from the top down."""
    found: dict[tuple[Path, str], Path] = {}
    for path in sorted(root.rglob("*")):
        found[path.parent, path.name if path.is_dir() else path.suffix] = path
    return found


def go_on(live: LiveCluster, number: int) -> list[Report]:
    """All regular operations of a cluster; returns the acknowledged records."""
    live.append({0: [f"{number}"]}, "cold").raise_for_failures()
    cluster = live.driver()
    done = [
        partial(cluster.replicate, check=False),
        partial(cluster.tier, check=False),
        partial(cluster.retain, check=False),
        partial(cluster.quorum.snapshot, check=False),
        cluster.history,
        cluster.describe,
        cluster.verify,
        partial(cluster.vacuum, check=False),
    ]
    return [report_of(one) for one in done]


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["link", "FIFO"])
@pytest.mark.parametrize("place", ["broker", "remote"])
@pytest.mark.parametrize(
    "share", [pytest.param(5, id="a-fifth"), pytest.param(1, id="all", marks=pytest.mark.nightly)]
)
def test_no_place_of_a_root_can_be_made_to_lead_out_of_it(
    live: LiveCluster, victim: Path, kind: str, place: str, share: int
) -> None:
    live.tiered("cold", file_delete_delay_ms="60000")
    for number in range(3):
        go_on(live, number)
    live.cluster.topics.alter_configs("cold", {"local.retention.bytes": "1000000"})
    go_on(live, 3)
    root = live.root(2) if place == "broker" else live.remote
    expected = 4
    for place_of in list(everywhere(root))[::share]:
        path = everywhere(root).get(place_of)
        if path is None:
            continue  # the log has grown
        aside = put(kind, path, victim)
        with untouched(victim):
            reports = go_on(live, expected)
        expected += 1
        assert path.is_symlink() or path.is_fifo(), "it was left alone"
        assert path.name in "\n".join(map(failure_texts, reports)), path
        path.unlink()
        aside.rename(path)
        live.cluster.bootstrap([2])
        live.cluster.heal()
        for report in go_on(live, expected):
            report.raise_for_failures()
        expected += 1
        assert live.isr("cold") == {1, 2, 3}
        assert live.read("cold") == {0: [str(number) for number in range(expected)]}


# ------------------------------------------------------------------------------ what a vacuum leaves


def test_a_probe_that_died_leaves_nothing_that_a_vacuum_takes_for_a_topic(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.tiered("cold")

    def die(store: LocalStore, names: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            LocalStore(str(live.remote)).check()
    [left] = [path for path in live.remote.iterdir() if path.is_file()]
    live.cluster.vacuum().raise_for_failures()
    assert left.exists()
    old = left.stat().st_mtime - 2 * DAY_S
    os.utime(left, (old, old))
    live.cluster.vacuum().raise_for_failures()
    assert not left.exists()


def test_a_file_in_the_remote_tier_that_is_called_like_the_folder_of_a_topic_is_none(live: LiveCluster) -> None:
    live.tiered("cold")
    (live.remote / f"gone-{'a' * 32}").write_bytes(b"theirs")
    os.utime(live.remote / f"gone-{'a' * 32}", (1, 1))
    live.cluster.vacuum().raise_for_failures()
    assert (live.remote / f"gone-{'a' * 32}").read_bytes() == b"theirs"


def test_probes_on_brokers_go_too(live: LiveCluster) -> None:
    old, new = (live.root(2) / f"{letter * 32}.probe" for letter in "ab")
    for path in (old, new):
        path.touch()
    os.utime(old, (1, 1))
    live.cluster.vacuum().raise_for_failures()
    assert (old.exists(), new.exists()) == (False, True)


# ------------------------------------------------------------------------------ one root for two brokers


def test_two_brokers_cannot_have_one_root_under_two_addresses(tmp_path: Path) -> None:
    """One folder is mounted in two places: ``broker.json`` shows it, not a path."""
    file = tmp_path / "cluster.toml"
    (tmp_path / "b1").mkdir()
    brokers = "\n".join(f'[[brokers]]\nid = {broker}\nlog_dir = "b{broker}"\n' for broker in (1, 2))
    file.write_text(f'[cluster]\nid = "c"\nvoters = [1]\n{brokers}')
    with pytest.raises(LogDirError, match="two brokers cannot share a log dir"):
        with_parts(Cluster, opener=lambda uri, options, clock: LocalStore(str(tmp_path / "b1"), clock)).format(
            file
        )


def test_a_broker_whose_root_is_anothers_by_now_leaves_the_isr(live: LiveCluster) -> None:
    live.root(2).rename(live.root(2).with_name("unmounted"))
    live.root(2).symlink_to(live.root(3))
    live.append("c").raise_for_failures()
    assert live.isr() == {1, 3}
    assert live.read() == {0: list("abc")}
