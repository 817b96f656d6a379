"""Certificates: an erasure is complete, and a copy is erased, only if nothing was left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.driver.report import Report
from stratalog.engine.upkeep.erasing.certificate import ErasedPartition, read_certificate
from stratalog.partitions.errors import (
    InvalidCallError,
    PolicyViolationError,
)
from tests.ports import ports_of
from tests.unit.cluster_harness import fence, report_of, rows_of
from tests.unit.erase_harness import KEY, ROWS, Erasable
from tests.unit.snapshot_harness import keyed
from tests.unit.test_upkeep_compact import stop_before_removal
from tests.unit.test_upkeep_erase_remote import Tiered


def verified(live: Erasable, path: Path) -> Report:
    return report_of(lambda: live.cluster.verify_erased(path))


def states(report: Report) -> set[object]:
    return {row["state"] for row in report.rows}


def of_partition(path: Path) -> ErasedPartition:
    certificate = read_certificate(path)
    assert not certificate.whole
    return certificate.topics[0].partitions[0]


def unproven(live: Erasable, path: Path, why: str) -> None:
    """The certificate names what is not erased, and it proves no copy to be erased."""
    left = of_partition(path).not_erased
    assert why in str(left)
    report = verified(live, path)
    assert not report.ok
    assert "erased" not in states(report)
    assert "proves nothing about t-0" in str(report.notes)


def test_a_partition_whose_leader_was_away_is_unknown(tmp_path: Path) -> None:
    live = Erasable(tmp_path, on_disk=True)
    live.cluster.elect("t", leader=2).raise_for_failures()
    fence(live, 1, 3)  # no other replica can lead
    with live.unreachable(2):
        report = live.erase(KEY, certificate=tmp_path / "c")
    assert (report.ok, report.whole) == (False, False)
    assert [row["not_erased"] for row in report.rows] != [0]
    unproven(live, tmp_path / "c", "t-0")
    assert KEY in str(live.everywhere())


def test_a_partition_that_could_not_be_searched_is_unknown(tmp_path: Path) -> None:
    live = Erasable(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    stop_before_removal(live)
    live.erase(KEY, certificate=tmp_path / "c")
    unproven(live, tmp_path / "c", "have not carried out its last compaction")
    assert KEY in str(live.everywhere())


def test_records_above_the_last_stable_offset_are_unknown(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    with live.cluster.transactions.begin("tx") as transaction:
        transaction.append_batches("t", {0: [keyed([(KEY, "later")], 1)]})
        live.erase(KEY, certificate=tmp_path / "c")
    unproven(live, tmp_path / "c", "above the last stable offset")
    assert live.erase(KEY, certificate=tmp_path / "d").whole
    assert states(verified(live, tmp_path / "d")) == {"erased"}


def test_a_certificate_without_keys_and_offsets_proves_nothing(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    assert live.erase(certificate=tmp_path / "c").whole
    report = verified(live, tmp_path / "c")
    assert states(report) == {"unknown"}
    assert "neither keys nor offsets" in str(report.failures)


def test_the_same_keys_again_give_a_whole_certificate_that_names_them(tmp_path: Path) -> None:
    """The sequence of docs/operations.md."""
    live = Erasable(tmp_path, file_delete_delay_ms="60000")
    assert not live.erase(KEY, certificate=tmp_path / "begun").whole
    live.clock.sleep(61)
    again = live.erase(KEY, certificate=tmp_path / "erased")
    assert rows_of(again, "records", "deleted_files", "not_erased") == [(3, 9, 0)]
    certificate = read_certificate(tmp_path / "erased")
    assert certificate.whole
    assert len(certificate.topics[0].key_digests) == 1
    assert sum(end - start for start, end in certificate.topics[0].partitions[0].offsets) == 3
    assert states(verified(live, tmp_path / "erased")) == {"erased"}
    once_more = live.erase(KEY, certificate=tmp_path / "later")
    assert once_more.whole
    assert verified(live, tmp_path / "later").ok


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"salt": "zz"}, "its salt"),
        ({"salt": ""}, "its salt"),
        ({"salt": "00"}, "its salt"),
        ({"cluster": "other"}, "for cluster 'other', but the open cluster is 'c'"),
        ({"partition": 7}, "partition 7 of topic 't', which has 1"),
        ({"partition": -1}, "partition -1 of topic 't'"),
        ({"version": 2}, "version 2"),
    ],
)
def test_a_certificate_that_cannot_be_meant_is_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    live = Erasable(tmp_path)
    live.erase(KEY, certificate=tmp_path / "c").raise_for_failures()
    fields = json.loads((tmp_path / "c").read_bytes())
    (fields["topics"][0]["partitions"][0] if "partition" in change else fields).update(change)
    (tmp_path / "c").write_text(json.dumps(fields))
    with pytest.raises(InvalidCallError, match=why):
        live.cluster.verify_erased(tmp_path / "c")


def test_a_remote_copy_that_cannot_be_looked_for_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Tiered(tmp_path)
    assert live.erase(KEY, certificate=tmp_path / "c").whole
    monkeypatch.setattr(ports_of(live.cluster).storage, "remote", None)
    report = verified(live, tmp_path / "c")
    assert [row["state"] for row in report.rows if row["broker"] is None] == ["unknown"]
    assert "has no [cluster] remote" in str(report.failures)


def test_an_unfinished_upload_is_unknown(tmp_path: Path) -> None:
    live = Tiered(tmp_path)
    assert live.erase(KEY, certificate=tmp_path / "c").whole
    remote = ports_of(live.driver()).storage.remote
    assert remote is not None
    staged = remote.stage_writer(f"{live.table().folder}/0/{0:020}.{1:010}.parquet")
    report = verified(live, tmp_path / "c")
    assert [(one.item, one.code) for one in report.failures] == [("remote tier", "UNKNOWN")]
    assert "1 unfinished" in report.failures[0].message
    staged.abort()
    assert verified(live, tmp_path / "c").ok


def test_a_topic_that_may_have_been_tiered_is_refused_without_the_remote_tier(tmp_path: Path) -> None:
    live = Erasable(tmp_path, remote_log_delete_on_disable="true")
    ports_of(live.cluster).storage.remote = None
    with pytest.raises(PolicyViolationError, match="does not name the remote tier"):
        live.erase(KEY)


@pytest.mark.parametrize("name", ["taken", "nowhere/c", "x" * 300, "dangling"])
def test_a_certificate_that_cannot_be_written_is_refused_before_anything_is_erased(
    tmp_path: Path, name: str
) -> None:
    live = Erasable(tmp_path)
    (tmp_path / "taken").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "c")
    with pytest.raises(InvalidCallError, match="certificate"):
        live.erase(KEY, certificate=tmp_path / name)
    assert live.everywhere() == dict(enumerate(ROWS))


def test_a_certificate_is_for_its_owner_alone_and_a_dry_run_writes_none(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    live.erase(KEY, certificate=tmp_path / "c", dry_run=True)
    assert not (tmp_path / "c").exists()
    live.erase(KEY, certificate=tmp_path / "c")
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o600


def test_a_certificate_that_is_lost_at_the_end_is_a_failure_of_the_report(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    folder = tmp_path / "c"

    def lose(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", lose)
        report = live.cluster.erase("t", [KEY], certificate=folder, check=False)
    assert f"{folder}: OUTCOME_UNKNOWN: the certificate was not written: No space left on device" in str(report)
    assert not folder.exists()
