"""Dry runs of operations that copy logs, recreate them or rewrite them, compared with the requests of the runs.

These estimates are not exact, because a run reads the metadata again after its commits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from bench.bench import TOPIC
from bench.calls import BROKERS
from stratalog import Cluster, Report
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.driver.estimate import Estimate
from stratalog.partitions.records import HEADERS
from stratalog.partitions.segments.reader import forget
from stratalog.partitions.store.memory import MemoryStore
from tests.ports import ports_of
from tests.unit.estimate_harness import TIERED, Scene, append, buckets_with, topic

COMPACTED = {
    "cleanup_policy": "compact",
    "segment_bytes": "1",
    "min_cleanable_dirty_ratio": "0.01",
    "segment_merge_min_files": "2",
}


def keyed(cluster: Cluster, times: int) -> None:
    for _ in range(times):
        batch = pa.RecordBatch.from_pydict(
            {
                "timestamp": pa.array([1_000] * 4, pa.timestamp("us", "UTC")),
                "key": pa.array([b"a", b"b", b"c", b"a"]),
                "value": pa.array([b"v"] * 4),
                "headers": pa.nulls(4, HEADERS),
            }
        )
        cluster.append_batches(TOPIC, {0: [batch], 1: [batch]}).raise_for_failures()


def replicated(cluster: Cluster) -> None:
    topic(cluster, retention_ms="-1")
    append(cluster, 3)
    cluster.replicate()


def behind(cluster: Cluster) -> None:
    replicated(cluster)
    append(cluster, 3, acks="leader")


def on_two(cluster: Cluster) -> None:
    cluster.topics.create(TOPIC, partitions=2, replication_factor=2)
    append(cluster, 3)
    cluster.reassign({(TOPIC, 0): (1, 2), (TOPIC, 1): (1, 2)})
    cluster.replicate()
    cluster.vacuum(older_than_ms=0)


def without_its_disk(cluster: Cluster) -> None:
    replicated(cluster)
    root = ports_of(cluster).storage.stores[BROKERS]
    root.delete([one.name for one in root.list("")])


def compacted(cluster: Cluster) -> None:
    topic(cluster, **COMPACTED)
    keyed(cluster, 4)
    cluster.merge()
    cluster.replicate()


def compacted_and_tiered(cluster: Cluster) -> None:
    topic(cluster, **COMPACTED, remote_storage_enable="true")
    keyed(cluster, 4)
    cluster.tier()
    cluster.replicate()


def damaged(led: bool) -> Callable[[Cluster], None]:
    def prepare(cluster: Cluster) -> None:
        replicated(cluster)
        [view, _] = cluster.image.views(TOPIC)
        broker = next(one for one in view.isr if (one == view.leader) is led)
        storage = ports_of(cluster).storage
        name = storage.replicas(view).replica(broker).log().chain[0].file.object.name
        root = storage.stores[broker].inner  # type: ignore[attr-defined]
        assert isinstance(root, MemoryStore)
        listed, data = root._objects[name]
        root._objects[name] = replace(listed, version="damaged"), data[:20] + bytes([data[20] ^ 1]) + data[21:]

    return prepare


def lacking_remotely(cluster: Cluster) -> None:
    topic(cluster, **TIERED)
    append(cluster, 3)
    cluster.tier()
    remote = ports_of(cluster).storage.remote_store("the test")
    objects = remote.walk(cluster.image.topic(TOPIC).folder)
    remote.delete([next(one.name for one in objects if one.name.endswith(".parquet"))])


def replicate(cluster: Cluster, dry: bool) -> Report:
    return cluster.replicate(dry_run=dry)


def add(cluster: Cluster, dry: bool) -> Report:
    return cluster.bootstrap(3, TOPIC, add=True, dry_run=dry)


def take_over(cluster: Cluster, dry: bool) -> Report:
    return cluster.bootstrap(3, instead_of=2, dry_run=dry)


def rebuild(cluster: Cluster, dry: bool) -> Report:
    return cluster.bootstrap(BROKERS, dry_run=dry)


def move(cluster: Cluster, dry: bool) -> Report:
    return cluster.reassign({(TOPIC, 0): (1, 3), (TOPIC, 1): (3, 2)}, dry_run=dry)


def remove(cluster: Cluster, dry: bool) -> Report:
    return cluster.reassign({(TOPIC, 0): (1,), (TOPIC, 1): (2,)}, dry_run=dry)


def heal(cluster: Cluster, dry: bool) -> Report:
    return cluster.heal(dry_run=dry, check=not dry)


def compact(cluster: Cluster, dry: bool) -> Report:
    return cluster.compact(dry_run=dry)


METADATA_BYTES = 130_000
"""The largest number of these requests in a run here; the estimate leaves them out."""
COPIES, REPAIRS = 0.15, 0.25
"""The share of the requests by which an estimate may be wrong."""


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    ("scene", "wrong"),
    [
        (Scene("replicate", behind, replicate), 0.06),
        (Scene("nothing to replicate", replicated, replicate), 0.06),
        (Scene("bootstrap, more replicas", on_two, add), COPIES),
        (Scene("bootstrap, instead of another", on_two, take_over), COPIES),
        (Scene("bootstrap, a new disk", without_its_disk, rebuild), COPIES),
        (Scene("reassign", on_two, move), COPIES),
        (Scene("reassign, fewer replicas", on_two, remove), COPIES),
        (Scene("compact", compacted, compact), COPIES),
        (Scene("compact, tiered", compacted_and_tiered, compact), COPIES),
        (Scene("heal, nothing damaged", replicated, heal), REPAIRS),
        (Scene("heal a follower", damaged(led=False), heal), REPAIRS),
        (Scene("heal a leader", damaged(led=True), heal), REPAIRS),
        (Scene("heal the remote tier", lacking_remotely, heal), REPAIRS),
    ],
    ids=lambda one: one.what if isinstance(one, Scene) else "",
)
@pytest.mark.parametrize("voters", [1, 3])
def test_a_run_sends_about_what_its_dry_run_says(scene: Scene, wrong: float, voters: int, tmp_path: Path) -> None:
    made = buckets_with(tmp_path, voters)
    scene.prepare(made.cluster)
    forget()
    image = made.cluster.image
    found = scene.run(made.driver(), True).estimate
    assert made.cluster.image == image, "a dry run changes nothing"
    assert found is not None
    forget()
    driver = made.driver()
    sent = made.sent_by(lambda: scene.run(driver, False))
    close(found, sent, wrong)


def close(estimate: Estimate, sent: Estimate, wrong: float) -> None:
    assert estimate.puts == pytest.approx(sent.puts, rel=wrong, abs=2)
    assert estimate.gets == pytest.approx(sent.gets, rel=wrong + 0.05, abs=2)
    assert 0.75 * sent.moved_bytes - METADATA_BYTES <= estimate.moved_bytes <= 1.3 * sent.moved_bytes


@pytest.mark.parametrize(("brokers", "voters"), [(1, 1), (3, 1), (3, 3), (5, 3)])
def test_a_restore_sends_about_what_its_dry_run_says(brokers: int, voters: int, tmp_path: Path) -> None:
    made = buckets_with(tmp_path, 1)
    topic(made.cluster, **TIERED)
    append(made.cluster, 3)
    made.cluster.tier()
    file = tmp_path / "heir.toml"
    lines = ["[cluster]", 'id = "heir"', f'remote = "{tmp_path}/remote"', f"voters = {list(range(1, voters + 1))}"]
    for broker in range(1, brokers + 1):
        lines += ["[[brokers]]", f"id = {broker}", f'log_dir = "memory://heir-{broker}"']
    file.write_text("\n".join(lines))
    heir = with_parts(Cluster, new_id=made._new_id, opener=made._open)
    found = heir.restore(file, "calls", dry_run=True).estimate
    assert found is not None
    assert heir.restore(file, "calls", dry_run=True).estimate == found, "a dry run changes nothing"
    sent = made.sent_by(lambda: heir.restore(file, "calls"))
    close(found, sent, 0.08)


def test_a_plan_has_the_files_and_bytes_to_copy(tmp_path: Path) -> None:
    """This includes replicas that no broker has yet, and a root that is not formatted yet."""
    made = buckets_with(tmp_path, 1)
    on_two(made.cluster)
    planned = add(made.driver(), True)
    assert [row["files"] for row in planned.rows] == [3, 3]
    done = add(made.driver(), False)
    assert planned.totals["bytes"] == done.totals["copied_bytes"]
    root = ports_of(made.cluster).storage.stores[BROKERS]
    root.delete([one.name for one in root.list("")])
    assert rebuild(made.driver(), True).totals["bytes"] == done.totals["copied_bytes"]


def test_a_plan_names_the_broker_that_it_leaves_out(tmp_path: Path) -> None:
    made = buckets_with(tmp_path, 1)
    without_its_disk(made.cluster)
    planned = replicate(made.driver(), True)
    assert [note for note in planned.notes if f"a run begins with: broker {BROKERS} is fenced: " in note]
    assert planned.estimate is not None
