"""Erasures by a condition on the key, from topics with snapshots and from the tables that publish them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratalog.partitions.errors import PolicyViolationError
from tests.unit.cluster_harness import report_of, rows_of
from tests.unit.erase_harness import KEY
from tests.unit.erase_snapshots_harness import ALL, STATE, Erasable, Published, published_topic
from tests.unit.snapshot_harness import checkpoint
from tests.unit.snapshot_table_harness import data_files, folder, state

WHERE = "key LIKE 'erase-me-%'"


live = published_topic


@pytest.mark.parametrize("where", [WHERE, f"key = '{KEY}' OR key IS NULL", f"NOT (key >= '{KEY}z')"])
def test_the_keys_that_it_selects_leave_every_file(live: Published, tmp_path: Path, where: str) -> None:
    with live.unchanged():
        planned = live.cluster.erase("t", where=where, dry_run=True)
    report = live.cluster.erase("t", where=where, certificate=tmp_path / "c")
    assert report.whole
    assert rows_of(planned, "records", "files") == rows_of(report, "records", "files") == [(3, 1)]
    live.check_gone()
    assert rows_of(live.cluster.erase("t", where=where), "records", "files") == [(0, 0)], "the rows of the "
    "snapshot that are no records have no key"
    assert live.cluster.verify_erased(tmp_path / "c", where=where).ok
    assert live.cluster.verify_erased(tmp_path / "c").ok, "by the number of the erasure"


@pytest.mark.parametrize("published", [True, False])
def test_verify_names_a_copy_that_comes_back(live: Published, tmp_path: Path, published: bool) -> None:
    spot = checkpoint(live, 1)
    [listed] = data_files(live)
    old = (folder(live) / listed).read_bytes() if published else spot.read()
    live.cluster.erase("t", where=WHERE, certificate=tmp_path / "c", now=True)
    if published:
        (folder(live) / listed).write_bytes(old)
    else:
        spot.store.create(spot.path, old)
    for text in (WHERE, None):
        report = report_of(lambda text=text: live.cluster.verify_erased(tmp_path / "c", where=text))
        assert [row["state"] for row in report.rows].count("not erased") == 1


def test_given_keys_narrow_it(live: Published) -> None:
    live.cluster.erase("t", ["nobody"], where=WHERE)
    assert state(live) == ALL
    live.cluster.erase("t", [KEY, *STATE], where=WHERE)
    live.check_gone()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"where": "key = 'x' AND value = 'y'"}, "erase whole keys, by a condition without value"),
        ({"where": "offset < 3 OR timestamp IS NULL"}, "by a condition without offset, timestamp"),
        ({"keys": [KEY], "before": "2020-01-01T00:00:00Z"}, "erase whole keys, without a time"),
        ({"where": WHERE, "before": "2020-01-01T00:00:00Z"}, "erase whole keys, without a time"),
    ],
)
def test_some_records_of_a_key_cannot_be_erased(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    live = Erasable(tmp_path).start()
    with live.unchanged(), pytest.raises(PolicyViolationError, match=named):
        live.cluster.erase("t", **options)
