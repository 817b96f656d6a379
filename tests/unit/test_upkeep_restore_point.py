"""The description of the cluster in the remote tier: written by tier runs and before retention, kept in a few
versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratalog.engine.metadata.description import digest
from stratalog.engine.upkeep.tiering.point import describe_first
from stratalog.partitions import paths
from stratalog.partitions.errors import StorageError
from stratalog.partitions.paths import DESCRIPTIONS, description_path
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, the_failure
from tests.unit.faulty_store import Faults
from tests.unit.restore_harness import Heir, partly_tiered, restored


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return partly_tiered(tmp_path)


def described(live: LiveCluster) -> list[str]:
    return sorted(path.name for path in (live.remote / DESCRIPTIONS / "c").iterdir())


@pytest.mark.slow
def test_a_tier_run_with_nothing_new_writes_no_description(live: LiveCluster) -> None:
    before = described(live)
    live.cluster.tier().raise_for_failures()
    live.cluster.tier().raise_for_failures()
    assert described(live) == before
    live.cluster.topics.alter_configs("t", {"segment.bytes": "2"})
    live.cluster.tier(dry_run=True)
    assert described(live) == before
    live.cluster.tier().raise_for_failures()
    assert len(described(live)) == len(before) + 1


def test_a_few_descriptions_are_kept_and_a_late_one_counts_for_nothing(live: LiveCluster) -> None:
    stale = ports_of(live.driver())
    image = stale.metadata.image()
    for number in range(5):
        live.cluster.topics.alter_configs("t", {"segment.bytes": str(number + 2)})
        live.cluster.tier().raise_for_failures()
    kept = described(live)
    assert len(kept) == 3
    latest = json.loads((live.remote / DESCRIPTIONS / "c" / kept[-1]).read_bytes())
    assert latest["topics"][0]["configs"]["segment.bytes"] == "6"
    assert describe_first(stale.metadata, stale.storage, image) == []
    assert described(live) == kept


def test_log_starts_are_described_as_soon_as_retention_moves_them(tmp_path: Path) -> None:
    """The description is written before the segments below the log starts are deleted, so deleted records do not
    return with a restore.
    """
    live = LiveCluster(tmp_path)
    live.tiered()
    live.fill("abcd")
    live.cluster.tier().raise_for_failures()
    live.cluster.topics.alter_configs("t", {"retention.bytes": "1"})
    live.cluster.retain().raise_for_failures()
    start = live.replicas().view.log_start_offset
    assert start > 0
    latest = json.loads((live.remote / DESCRIPTIONS / "c" / described(live)[-1]).read_bytes())
    assert latest["topics"][0]["partitions"] == [[1, start]]


@pytest.mark.slow
def test_records_deleted_by_hand_do_not_come_back_with_a_restore(live: LiveCluster) -> None:
    """DeleteRecords moves a log start in the same way as retention. Offsets of deleted records are never used
    again.
    """
    live.cluster.tier().raise_for_failures()
    live.cluster.topics.delete_records("t", {0: 3}).raise_for_failures()
    (row, _) = live.cluster.drill().raise_for_failures().rows
    assert (row["log_start"], row["log_end"], row["deleted_records_back"]) == (3, 8, 0)


FAR = (10**6, 8 * 10**18)
"""Metadata offsets: an unlikely one, and one that no log reaches."""


@pytest.mark.slow
@pytest.mark.parametrize("offset", FAR)
@pytest.mark.parametrize(
    "content", [None, b"{}", b"[" * 5000], ids=["as the latest", "no restore point", "brackets"]
)
def test_a_description_of_metadata_that_nobody_committed_is_named_and_stops_nobody(
    live: LiveCluster, offset: int, content: bytes | None
) -> None:
    """Otherwise a writer of the remote tier could invalidate all restore points with one file."""
    folder = live.remote / DESCRIPTIONS / "c"
    data = (folder / described(live)[-1]).read_bytes() if content is None else content
    forged = folder / paths.base_name(description_path("c", offset, digest(data)))
    forged.write_bytes(data)
    live.cluster.topics.alter_configs("t", {"segment.bytes": "7"})
    for _ in range(2):
        live.append(["more"]).raise_for_failures()
        failure = the_failure(live.cluster.tier(check=False))
        assert failure.startswith("restore point: CORRUPT_MESSAGE")
        assert forged.name in failure
        assert "stratalog did not write this file. Delete this file" in failure
    assert forged.read_bytes() == data, "it is evidence, and left alone"
    forged.unlink()
    assert restored(live).cluster.image.topic("t").configs["segment.bytes"] == "7"


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers", [[[9_999_999_999, 0], [1, 0]], [[1, 8 * 10**18], [1, 0]], [[1, 0], [1, 9 * 10**18]]]
)
def test_a_description_with_numbers_far_ahead_of_the_remote_log_restores_nothing(
    live: LiveCluster, numbers: list[list[int]]
) -> None:
    folder = live.remote / DESCRIPTIONS / "c"
    latest = folder / described(live)[-1]
    answer = json.loads(latest.read_bytes())
    answer["topics"][0]["partitions"] = numbers
    data = json.dumps(answer).encode()
    latest.unlink()
    (folder / paths.base_name(description_path("c", 500, digest(data)))).write_bytes(data)
    heir = Heir(live)
    with live.unchanged():
        failure = the_failure(heir.restore())
    assert failure.startswith("t: CORRUPT_MESSAGE: t-")
    assert "stratalog did not write this restore point" in failure
    assert heir.untouched


def test_a_vacuum_leaves_descriptions_alone(live: LiveCluster) -> None:
    before = described(live)
    live.cluster.vacuum(older_than_ms=0).raise_for_failures()
    assert described(live) == before


def test_an_unwritable_description_prevents_no_tiering(tmp_path: Path) -> None:
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.tiered()
    live.fill("abc")

    faults.refuse(StorageError("no"), "create", of=DESCRIPTIONS)
    report = live.cluster.tier(check=False)
    assert the_failure(report) == "restore point: KAFKA_STORAGE_ERROR: no"
    assert report.totals["uploaded_files"] == 3
