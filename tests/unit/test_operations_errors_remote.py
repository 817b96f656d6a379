"""A damaged remote tier: each fault is one clear error that names the thing, and nothing changes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.store.local import LocalStore
from tests.unit.cluster_harness import LiveCluster, codes, the_failure
from tests.unit.tampering import Spot


@pytest.mark.slow
def test_a_remote_table_that_others_have_written_to_is_named(tmp_path: Path) -> None:
    """A foreign commit (such as a compaction) may leave an ambiguous log, which is never guessed."""
    import deltalake

    live = LiveCluster(tmp_path)
    live.tiered()
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    (folder,) = live.remote.glob("t-*")
    table = deltalake.DeltaTable(str(folder))
    deltalake.write_deltalake(table, table.to_pyarrow_table(), mode="append")
    with live.unchanged():
        for operation in (
            partial(live.cluster.tier, check=False),
            partial(live.cluster.replicate, check=False),
            partial(live.cluster.merge, check=False),
            partial(live.cluster.retain, check=False),
            live.cluster.describe,
            live.cluster.verify,
        ):
            report = operation()
            assert codes(report) == {"CORRUPT_MESSAGE": 1}
            assert "another writer has changed the records" in the_failure(report)
        with pytest.raises(CorruptionError):
            live.cluster.plan_read("t", OffsetSpec.LAST_TIERED)
        assert live.read() == {0: list("abc")}, "what the leaders hold is read without the table"


def test_a_remote_object_of_which_a_bit_was_flipped_is_found_by_verify(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.tiered(local_retention_bytes="-2")
    live.fill("abc")
    live.cluster.tier().raise_for_failures()
    path = sorted(live.remote.rglob("0/*.parquet"))[1]
    Spot(LocalStore(str(live.remote)), str(path.relative_to(live.remote))).flip(30)
    with live.unchanged():
        report = live.cluster.verify(deep=True)
        assert codes(report) == {"CORRUPT_SEGMENT": 1}
        assert path.name in the_failure(report)
        assert "in the remote tier" in the_failure(report)


@pytest.mark.slow
def test_one_topic_that_is_broken_does_not_stop_the_others(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    for name in ("bad", "good"):
        live.tiered(name)
        live.fill("abc", name)
    live.cluster.tier().raise_for_failures()
    (log,) = live.remote.glob("bad-*/_delta_log")
    (log / f"{0:020d}.json").write_text("no json")
    (log / f"{1:020d}.json").write_text("no json")
    live.fill("d", "good")
    for operation in (
        partial(live.cluster.replicate, check=False),
        partial(live.cluster.merge, check=False),
        partial(live.cluster.tier, check=False),
        partial(live.cluster.retain, check=False),
    ):
        report = operation()
        assert [failure.item for failure in report.failures] == ["bad"]
        assert "good" in {row["topic"] for row in report.rows}
    assert live.read("good") == {0: list("abcd")}
