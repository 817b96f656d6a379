"""Remotes that are not as they should be: one clear error each, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from partitions.errors import StorageError
from partitions.store.local import LocalStore
from tests.unit.cluster_harness import LiveCluster, codes, the_failure
from tests.unit.faulty_store import Faults
from tests.unit.harness import SCHEMA
from tests.unit.remote_folder import assert_tables_and_folders_agree, listed, lying
from tests.unit.tiering_harness import table_in

HOUR_MS = 3_600_000


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return LiveCluster(tmp_path)


def remote_files(live: LiveCluster) -> list[Path]:
    return sorted(live.remote.glob("*/0/*.parquet"))


def filled(live: LiveCluster, values: str, **configs: str) -> None:
    """A topic of which all is tiered, one segment a value."""
    live.tiered(**configs)
    live.fill(values)
    live.cluster.tier().raise_for_failures()


def emptied(live: LiveCluster) -> None:
    for child in live.remote.iterdir():
        shutil.rmtree(child)


def of_another_cluster(live: LiveCluster) -> None:
    emptied(live)
    topic = live.cluster.image.topic("t")
    table_in(LocalStore(str(live.remote)), topic_id=topic.topic_id, cluster_id="other").ensure(SCHEMA)


def without_its_table(live: LiveCluster) -> None:
    shutil.rmtree(next(live.remote.glob("t-*/_delta_log")))


def lacking_an_object(live: LiveCluster) -> None:
    remote_files(live)[1].unlink()


def written_by_somebody_else(live: LiveCluster) -> None:
    table = DeltaTable(str(next(live.remote.glob("t-*"))))
    table.create_write_transaction(
        [AddAction("part-0.parquet", 1, {}, 0, True, "{}")], mode="append", schema=table.schema()
    )


def compacted_by_somebody_else(live: LiveCluster) -> None:
    DeltaTable(str(next(live.remote.glob("t-*")))).optimize.compact()


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (emptied, "LOG_GAP", "is the remote mounted"),
        (of_another_cluster, "INCONSISTENT_CLUSTER_ID", "belongs to cluster 'other'"),
        (without_its_table, "LOG_GAP", "is the remote mounted"),
        (lacking_an_object, "REMOTE_OBJECT_MISSING", "not there at their size"),
        (written_by_somebody_else, "CORRUPT_MESSAGE", "somebody else wrote"),
        (compacted_by_somebody_else, "CORRUPT_MESSAGE", "somebody else wrote"),
    ],
)
def test_a_remote_that_is_not_as_it_should_be_is_one_error_and_nothing_is_dropped(
    live: LiveCluster, spoil: Callable[[LiveCluster], None], code: str, said: str
) -> None:
    """Issue, "Bad input"."""
    filled(live, "abcd", file_delete_delay_ms="3600000")
    live.cluster.retain().raise_for_failures()  # the brokers rely on it already
    live.fill("ef")
    spoil(live)
    live.clock.advance_ms(2 * HOUR_MS)
    before = live.on_brokers()
    for _ in range(2):
        report = live.cluster.retain()
        assert codes(report) == {code: 1}
        assert said in the_failure(report)
    data = {name for name in before if name.endswith(".parquet") and "/t-" in name}
    assert data <= set(live.on_brokers())


def test_without_permission_to_delete_nothing_is_forgotten(tmp_path: Path) -> None:
    """The segments leave the table; their objects wait for somebody who may delete them."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    filled(live, "abcd")
    live.cluster.alter_configs("t", {"retention.bytes": "0"})

    def refused(uri: str, what: str, name: str) -> None:
        if what == "delete" and uri.endswith("/remote"):
            raise StorageError("cannot delete: AccessDenied")

    faults.before = refused
    assert "AccessDenied" in the_failure(live.driver().retain())
    assert len(listed(live)) == 1
    assert len(lying(live)) == 4
    faults.none()
    live.cluster.retain().raise_for_failures()
    assert_tables_and_folders_agree(live)
