"""Erasing keys from topics that are tiered and compacted, and from topics that become tiered afterwards."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stratalog.engine.upkeep.erasing import erase as erasing
from stratalog.engine.upkeep.replication.compact_remote import RemoteTables
from stratalog.engine.upkeep.tiering.tier import tier
from stratalog.engine.upkeep.tiering.uploads import Uploads
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import PolicyViolationError, RetriableError
from stratalog.partitions.removal import Rule
from stratalog.partitions.rewrites.erasing import erase_from
from stratalog.partitions.rewrites.removing import RemovingOptions, carry_out
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.transactions import transactions_of
from stratalog.tiering.delta_table import DeltaTopicTable
from stratalog.tiering.remote_file import remote_file
from stratalog.tiering.removing import carry_out_remotely
from tests.ports import ports_of
from tests.unit.at_calls import dies_at, during
from tests.unit.cluster_harness import report_of, rows_of
from tests.unit.compact_remote_harness import check_latest, lake
from tests.unit.erase_harness import KEPT, KEY, OTHER, SECRET, Erasable, stop_at, traces
from tests.unit.restore_harness import Heir, restored
from tests.unit.test_upkeep_compact import Row
from tests.unit.test_upkeep_erase_remote import BOTH, LOCAL, UNTIERED, Tiered
from tests.unit.together import together

ALSO = "erase-me-19"
MORE: tuple[Row, ...] = ((ALSO, "1"), (KEY, "1"), (ALSO, "2"), ("b", None), (KEY, "2"), ("b", "2"), ("z", "1"))


class Both(Tiered):
    """A cluster with the tiered and compacted topic ``t``, whose last record is only on the brokers."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(
            folder,
            fill=False,
            tier=False,
            **{"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", **options},
        )
        self.rows: list[Row] = []
        self.add(MORE)

    def add(self, rows: tuple[Row, ...]) -> None:
        """Append these, each a segment, and tier all but the last."""
        for row in rows:
            self.put(row)
        self.rows += rows
        self.tier_all()

    def check_gone(self, *keys: str) -> None:
        """Nothing of the keys is left, and the last record of each other one is what readers get."""
        assert [row for row in self.fetched().values() if row[0] in keys] == []
        check_latest([row for row in self.rows if row[0] not in keys], self.latest())
        assert self.remote_traces(*keys) == []
        assert traces(self, *keys) == []
        assert self.cluster.verify(deep=True).ok
        assert self.cluster.heal().rows == []

    def latest(self) -> dict[int, Row]:
        """The records that a reader gets, by their place among those of keys that were not erased."""
        erased = {row[0] for row in self.rows} - {row[0] for row in self.fetched().values()}
        places = [at for at, row in enumerate(self.rows) if row[0] not in erased]
        return {places.index(at): row for at, row in self.fetched().items()}


@pytest.mark.sample(2)
@pytest.mark.parametrize(("local", "wide"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("first", ["compact", "erase"])
def test_both_kinds_of_rule_follow_each_other(tmp_path: Path, local: bool, wide: bool, first: str) -> None:
    live = Both(tmp_path, **(LOCAL if local else {}))
    live.cluster.topics.alter_configs("t", {"segment.bytes": "1000000" if wide else "1"})
    if first == "compact":
        live.cluster.compact("t").raise_for_failures()
    report = live.erase(KEY, certificate=tmp_path / "c")
    assert report.whole
    live.check_gone(KEY)
    states = {str(row["state"]) for row in live.cluster.verify_erased(tmp_path / "c").rows}
    assert states == {"erased"}
    generation = live.remote_log().generation(0)
    assert generation == live.cluster.image.views("t")[0].generation == (2 if first == "compact" else 1)
    live.cluster.compact("t").raise_for_failures()
    live.cluster.topics.alter_configs("t", {"segment.bytes": "1"})
    live.add(((ALSO, "3"), (KEY, "3"), ("c", "1"), (ALSO, "4"), (KEY, "4"), ("y", "1")))
    live.cluster.compact("t").raise_for_failures()
    assert live.erase(KEY).whole
    live.check_gone(KEY)
    live.add(((ALSO, "5"), ("x", "1")))
    live.cluster.compact("t").raise_for_failures()
    live.check_gone(KEY)
    assert live.cluster.verify_erased(tmp_path / "c").ok
    now = live.remote_log()
    assert now.generation(0) == now.rules[0].generation > now.erased_to(0) > 0
    Heir(live).restore().raise_for_failures()
    assert KEY not in {row[0] for row in lake(live.remote / live.table().folder).values()}


def test_segments_that_compaction_left_alone_keep_what_it_left(tmp_path: Path) -> None:
    """The compaction is recorded for segments that it did not rewrite: the erasure rewrites one of these."""
    live = Both(tmp_path)
    live.cluster.compact("t").raise_for_failures()
    assert live.names() == ["0-1.1", "1-2.1", "2-3.0", "3-4.1", "4-5.0", "5-6.0", "6-7.0"]
    assert live.erase(KEY).whole
    assert live.names() == ["0-1.1", "1-2.1", "2-3.0", "3-4.1", "4-5.2", "5-6.0", "6-7.0"]
    log = live.remote_log()
    assert (log.rules[0].generation, log.erased_to(0)) == (1, 2)
    assert live.cluster.image.views("t")[0].generation == 2
    before = log.version
    assert rows_of(live.cluster.compact("t"), "remote_segments") == [(0,)]
    assert live.remote_log().version == before


def test_an_erasure_waits_for_the_remote_part_of_a_compaction(tmp_path: Path) -> None:
    """Also if no broker has an offset below its bound any more."""
    live = Both(tmp_path)
    with dies_at(RemoteTables, "carry_out"):
        live.cluster.compact("t")
    assert live.cluster.image.views("t")[0].compacted_to == live.log(1).local_start == 6
    report = live.erase(KEY)
    assert "the last compaction has not been applied to its remote log yet: run `stratalog compact`" in str(
        report.failures
    )
    assert not live.cluster.image.views("t")[0].erasures
    live.cluster.compact("t").raise_for_failures()
    assert live.erase(KEY).whole
    live.check_gone(KEY)


def test_a_compaction_waits_for_the_remote_part_of_an_erasure(tmp_path: Path) -> None:
    """Also if no broker has one of the offsets any more."""
    live = Both(tmp_path)
    with dies_at(erasing.RemoteErasing, "_attempt"):
        live.erase(KEY)
    assert rows_of(live.cluster.compact("t"), "why") == [
        ("an erasure is unfinished: run `stratalog erase` again, without keys",)
    ]
    assert not live.cluster.image.views("t")[0].rules
    assert live.erase().ok
    live.cluster.compact("t").raise_for_failures()
    assert live.erase(KEY).whole
    live.check_gone(KEY)


def test_an_erasure_since_a_compaction_began_is_no_rule_that_the_metadata_lack(tmp_path: Path) -> None:
    live = Both(tmp_path)
    live.cluster.compact("t").raise_for_failures()
    ports = ports_of(live.driver())
    before = ports.storage.replicas(ports.metadata.image().views("t")[0])
    assert live.erase(KEY).whole
    with ports.execution.run("compact") as run:
        tables = RemoteTables(ports.metadata, ports.storage, run)
        assert tables.unknown_rule(before, live.remote_log()) is None
        lost = replace(live.remote_log(), erased={0: 3})
        assert "which the metadata lacks" in str(tables.unknown_rule(before, lost))


def test_both_at_once_harm_nothing(tmp_path: Path) -> None:
    live = Both(tmp_path)
    together(
        partial(live.driver().compact, "t", check=False),
        partial(live.driver().erase, "t", [KEY], check=False),
        partial(live.driver().erase, "t", [ALSO], check=False),
    )
    for _ in range(2):
        live.driver().compact("t").raise_for_failures()
        report = live.driver().erase("t", [KEY, ALSO], check=False)
    assert report.whole
    live.check_gone(KEY, ALSO)


def test_a_rewrite_applies_both_kinds(tmp_path: Path) -> None:
    """A file from a replica that was away follows neither rule: compaction comes first, and applies both."""
    live = Erasable(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    ports = ports_of(live.cluster)
    view = live.cluster.image.views("t")[0]
    leader = ports.storage.replicas(view).leader
    named, rule = Erasure(1, ((1, 2), (3, 4), (5, 6))), Rule(2, 5, 0)
    erase_options = erasing.work_of(ports.storage, ports.clock, live.cluster.image, view, None).options
    later = replace(leader, generation=2)
    log = later.log()
    transactions = transactions_of(log, later.footer)
    with pytest.raises(RetriableError, match="the last compaction has not been applied to"):
        erase_from(later, log, transactions, [named], replace(erase_options, compacted=rule))
    options = RemovingOptions(segment_bytes=1, compression="none", memory_bytes=1 << 20, erasures=[named])
    carry_out(later, log, transactions, rule, options)
    held = {
        row["offset"]: row["key"].decode()
        for link in later.log(fresh=True).chain
        for row in _records(later, link)
        if row["control"] is None
    }
    assert held == {4: OTHER, 5: KEY}, "offset 5 is above the bound"


@pytest.mark.parametrize(("erased", "left"), [(4, {2, 5}), (5, {3, 4})])
def test_an_erased_record_supersedes_no_other(tmp_path: Path, erased: int, left: set[int]) -> None:
    """A rewrite reads a file that has not lost the erased record yet, such as one from a replica that was away."""
    live = Erasable(tmp_path, cleanup_policy="delete")
    leader = ports_of(live.cluster).storage.replicas(live.cluster.image.views("t")[0]).leader
    later = replace(leader, generation=2)
    log = later.log()
    named = Erasure(1, ((erased, erased + 1),))
    options = RemovingOptions(segment_bytes=1, compression="none", memory_bytes=1 << 20, erasures=[named])
    carry_out(later, log, transactions_of(log, later.footer), Rule(2, 6, 0), options)
    chain = later.log(fresh=True).chain
    assert {row["offset"] for link in chain for row in _records(later, link) if row["control"] is None} == left


@pytest.mark.parametrize(("erased", "left"), [(2, {0, 4, 5, 6}), (4, {1, 2, 5, 6}), (5, {2, 3, 4, 6})])
def test_an_erased_record_supersedes_no_other_in_the_remote_log(
    tmp_path: Path, erased: int, left: set[int]
) -> None:
    live = Both(tmp_path)
    ports = ports_of(live.driver())
    topic = live.driver().image.topic("t")
    table, segments = ports.storage.remote_table(topic), live.remote_log().of_partition(0)
    leader = replace(ports.storage.replicas(live.driver().image.views("t")[0]).leader, generation=2)
    log = leader.log()
    named = Erasure(1, ((erased, erased + 1),))
    options = RemovingOptions(segment_bytes=1, compression="none", memory_bytes=1 << 20, erasures=[named])
    transactions = transactions_of(log, leader.footer)
    done = carry_out_remotely(
        leader, log, transactions, Rule(2, 6, 0), table.remote, table.folder, segments, options
    )
    gone = {path for each in done.replaced for path in [former.path for former in each.former]}
    now = [each.upload.segment for each in done.replaced] + [one for one in segments if one.path not in gone]
    rows = [
        row
        for one in now
        for part in read_batches(table.remote, remote_file(table.folder, one), one.base_offset, one.next_offset)
        for row in part.to_pylist()
    ]
    assert {row["offset"] for row in rows if row["control"] is None} == left


def _records(replica: Any, link: Any) -> list[dict[str, Any]]:
    return [
        row for part in read_batches(replica.store, link.file, link.start, link.end) for row in part.to_pylist()
    ]


# ------------------------------------------------------------------------------- tiering that begins later


def tiering(live: Erasable) -> None:
    live.driver().topics.alter_configs("t", {key.replace("_", "."): value for key, value in BOTH.items()})


def check_tiered(live: Erasable) -> None:
    """All but the last record leave the brokers, without the key."""
    driver = live.driver()
    driver.tier("t").raise_for_failures()
    for _ in range(2):
        driver.retain("t").raise_for_failures()
        live.clock.sleep(1)
    table = ports_of(driver).storage.remote_table(driver.image.topic("t"))
    log, view = table.load(), driver.image.views("t")[0]
    assert (log.end(0) or 0) >= 5
    assert not log.lacks_erasure(0, view.last_erasure)
    assert log.generation(0) == view.generation
    found = lake(live.remote / table.folder)
    assert found.items() <= KEPT.items()
    assert KEY not in str(found)
    assert traces(live, KEY, SECRET) == []
    assert not any(KEY.encode() in path.read_bytes() for path in live.remote.rglob("*") if path.is_file())
    assert driver.verify(deep=True).ok
    assert driver.erase("t", [KEY]).whole


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_topic_with_erased_records_becomes_tiered(tmp_path: Path, policy: str) -> None:
    live = Erasable(tmp_path, cleanup_policy=policy, min_cleanable_dirty_ratio="0")
    if policy == "compact":
        live.cluster.compact("t").raise_for_failures()
    assert live.erase(KEY).whole
    tiering(live)
    check_tiered(live)
    if policy == "compact":
        live.cluster.compact("t").raise_for_failures()
        assert live.driver().verify(deep=True).ok


@pytest.mark.parametrize("recorded_by", ["erase", "compact"])
def test_a_restored_partition_compacts_tiers_and_erases_whatever_was_not_tiered(
    tmp_path: Path, recorded_by: str
) -> None:
    """The table records the rule with the bound of the lost brokers, far above the first segment that it gets."""
    live = Erasable(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for value in ("1", "2", "3", "4"):
        live.put((OTHER, value))
    live.cluster.compact("t").raise_for_failures()
    if recorded_by == "erase":
        assert live.erase(KEY).whole
    tiering(live)
    ports = ports_of(live.driver())
    tier(ports.metadata, ports.storage, ports.execution, ["t"], over=lambda: True)  # one file, then it is killed
    if recorded_by == "compact":
        report_of(lambda: live.driver().compact("t"))
    table = ports.storage.remote_table(live.cluster.image.topic("t")).load()
    end = table.end(0) or 0
    assert 0 < end < table.rules[0].bound
    heir = restored(live).cluster
    for value in (b"1", b"2", b"3"):
        heir.produce("t", pa.table({"key": [ALSO.encode()], "value": [value]}))
    for _ in range(2):
        heir.compact("t").raise_for_failures()
        heir.tier("t").raise_for_failures()
    assert (ports_of(heir).storage.remote_table(heir.image.topic("t")).load().end(0) or 0) > end
    assert heir.erase("t", [ALSO], check=False).ok


def test_an_unfinished_erasure_holds_back_the_first_uploads(tmp_path: Path) -> None:
    live = Erasable(tmp_path)
    stop_at(live, "erase_partition")
    tiering(live)
    live.driver().tier("t").raise_for_failures()
    assert not any(KEY.encode() in path.read_bytes() for path in live.remote.rglob("*.parquet"))
    assert live.driver().erase("t", now=True).ok
    check_tiered(live)


def test_a_former_table_is_cleaned_and_told_of_the_erasure(tmp_path: Path) -> None:
    live = Tiered(tmp_path, **LOCAL)
    live.cluster.topics.alter_configs("t", UNTIERED)
    with pytest.raises(
        PolicyViolationError, match="its remote table still lists segments: run `stratalog retain`"
    ):
        live.erase(KEY)
    live.cluster.topics.alter_configs("t", {"file.delete.delay.ms": "3600000"})
    live.cluster.retain("t").raise_for_failures()
    assert live.remote_traces(KEY), "the objects wait for their readers, and the table has their statistics"
    assert live.erase(KEY, now=True).whole
    assert live.remote_traces(KEY, SECRET) == []
    assert live.everywhere() == KEPT
    assert live.remote_log().erased_to(0) == 1
    live.cluster.topics.alter_configs("t", {"file.delete.delay.ms": "0"})
    tiering(live)
    live.tier_all()
    live.check_gone()


def test_an_upload_of_an_earlier_time_of_tiering_is_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver stalls while the topic is tiered no more, loses records, and is tiered again."""
    live = Tiered(tmp_path, tier=False, **LOCAL)
    whole: list[bool] = []

    def erase_untiered() -> None:
        driver = live.driver()
        driver.topics.alter_configs("t", UNTIERED)
        driver.retain("t").raise_for_failures()
        whole.append(driver.erase("t", [KEY], now=True, check=False).whole)
        on = {
            "remote.storage.enable": "true",
            "remote.log.delete.on.disable": "false",
            "local.retention.bytes": "-1",
        }
        driver.topics.alter_configs("t", on)

    during(monkeypatch, Uploads, "_commit", erase_untiered)
    report = report_of(lambda: live.driver().tier("t"))
    assert whole == [True]
    assert "an erasure has removed records" in str(report.failures)
    live.driver().tier("t").raise_for_failures()
    assert live.names() == ["0-2.1", "2-3.0", "3-4.1", "4-5.0", "5-6.1"]
    assert live.erase(KEY, now=True).whole
    live.check_gone()


@pytest.mark.parametrize("died", ["before", "after"])
def test_tiering_continues_after_a_driver_died_at_the_first_record_of_the_table(tmp_path: Path, died: str) -> None:
    live = Erasable(tmp_path)
    assert live.erase(KEY).whole
    tiering(live)
    with dies_at(DeltaTopicTable, "record_beginning", after=died == "after"):
        live.driver().tier("t")
    check_tiered(live)
