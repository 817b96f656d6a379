"""Old stored data stays readable, and new data keeps its format (``tests/golden``)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.golden import CLUSTER, FORMATS, HOLDS, difference
from tests.golden.cluster import (
    BROKERS,
    PLAIN,
    SIGNED,
    TRIP,
    World,
    batch,
    build,
    build_signed,
    holdings,
    records,
    trips,
    unpacked,
)
from tests.golden.formats import described, of_this_pyarrow, without_bytes


def moved_here(tmp_path: Path, cluster_id: str) -> World:
    """The golden cluster on folders, registered as faithful copies of the original roots."""
    world = unpacked(CLUSTER, tmp_path, cluster_id)
    world.open().brokers.register(BROKERS[cluster_id], trust_copy=True).raise_for_failures()
    return world


@pytest.mark.slow
def test_every_file_is_written_as_it_always_was(tmp_path: Path) -> None:
    """Names and bytes. For Parquet and Delta the arguments to the library are compared; Parquet's own bytes only
    if the same version of pyarrow has written the golden ones."""
    golden = FORMATS.read_text(encoding="utf-8")
    now = described(build(tmp_path).files() | build_signed(tmp_path).files())
    if not of_this_pyarrow(golden):
        golden, now = without_bytes(golden), without_bytes(now)
    if wrong := difference(golden, now, "python -m tests.golden"):
        pytest.fail(wrong, pytrace=False)


@pytest.mark.slow
def test_a_cluster_from_an_earlier_day_holds_the_same_records(tmp_path: Path) -> None:
    world = moved_here(tmp_path, PLAIN)
    wrong = difference(
        HOLDS.read_text(encoding="utf-8"), holdings(world.open()), "python -m tests.golden --cluster"
    )
    if wrong:
        pytest.fail(wrong, pytrace=False)


@pytest.mark.slow
def test_a_cluster_from_an_earlier_day_continues(tmp_path: Path) -> None:
    """The cluster is verified unchanged, appended to, replicated, merged, tiered and retained; a producer's
    sequence is remembered; a transaction ends.
    """
    world = moved_here(tmp_path, PLAIN)
    cluster = world.open()
    assert cluster.verify(deep=True).failures == []
    held = {topic: list(records(cluster, topic)) for topic in ("plain", "cities", "trips")}
    now_ms = world.clock.now_ms()
    again = [batch([(b"", b"", None), (b"k1", b"", None)], now_ms)]
    replayed = cluster.append_batches(
        "plain", {0: again}, producer="loader", sequence=2, on_changed_replay="accept"
    )
    assert [row["outcome"] for row in replayed.raise_for_failures().rows] == ["duplicate"]
    appended = {
        "plain": batch([(b"k", b"later", None)], now_ms),
        "cities": batch([(b"Oslo", b"later", None)], now_ms),
        "trips": batch(trips("Later"), now_ms, pa.string(), TRIP),
    }
    for topic, rows in appended.items():
        cluster.append_batches(topic, {0: [rows]}).raise_for_failures()
    cluster.transactions.abort("t-3").raise_for_failures()
    for job in (cluster.replicate, cluster.merge, cluster.tier, cluster.retain, cluster.snapshot):
        job().raise_for_failures()
    cluster = world.open()
    for topic, before in held.items():
        *earlier, last = records(cluster, topic)
        assert earlier == before
        assert "ater" in last
    assert "open" not in "".join(records(cluster, "ledger", "read_committed"))
    assert cluster.verify(deep=True).failures == []


def test_a_signed_cluster_from_an_earlier_day_is_still_believed(tmp_path: Path) -> None:
    world = moved_here(tmp_path, SIGNED)
    cluster = world.open()
    assert len(list(records(cluster, "t"))) == 2
    cluster.topics.alter_configs("t", {"segment.merge.min.files": "4"})
    cluster.tier().raise_for_failures()
    assert cluster.verify(deep=True).failures == []


def test_a_restore_point_from_an_earlier_day_restores(tmp_path: Path) -> None:
    """All tiered records, from the remote tier alone."""
    world = unpacked(CLUSTER, tmp_path, PLAIN)
    heir = world.restore(tmp_path / "heir.toml")
    held = HOLDS.read_text(encoding="utf-8")
    restored = list(records(heir, "trips"))
    assert len(restored) == 5
    assert all(f"    {line}\n" in held for line in restored)
    assert {"plain", "cities", "ledger"} <= {str(row["topic"]) for row in heir.topics.list().rows}
