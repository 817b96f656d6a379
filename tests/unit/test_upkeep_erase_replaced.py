"""Files that a compaction replaced before an erasure hold records of the keys that the erasure does not name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.engine.upkeep.erasing.tasks import may_hold
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.removal import CommittedRule, Rule
from tests.ports import ports_of
from tests.unit.erase_harness import KEY, OTHER, SECRET, Erasable, pass_the_delay_of_delta, traces
from tests.unit.test_upkeep_compact import Row
from tests.unit.test_upkeep_erase_both_rules import Both

MORE: tuple[Row, ...] = ((OTHER, "9"), (OTHER, "10"))
COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "file_delete_delay_ms": "60000"}
ELSEWHERE = ((90, 91),)


@pytest.mark.parametrize(
    ("rules", "erasure", "log_start", "held"),
    [
        ([], None, 0, (False, False)),
        ([], Erasure(2, ELSEWHERE), 0, (False, False)),
        ([Rule(1, 5)], Erasure(2, ELSEWHERE), 0, (True, True)),
        ([Rule(1, 5)], Erasure(2, ()), 0, (False, True)),
        ([Rule(1, 2)], Erasure(2, ELSEWHERE), 0, (False, False)),
        ([Rule(1, 5), Rule(3, 7)], Erasure(2, ELSEWHERE), 0, (True, True)),
        ([Rule(3, 7)], Erasure(2, ELSEWHERE), 0, (True, True)),
        ([Rule(3, 2), Rule(4, 9)], Erasure(2, ELSEWHERE), 0, (False, True)),
        ([Rule(1, 5)], None, 0, (False, True)),
        ([], None, 3, (False, True)),
    ],
)
def test_a_replaced_file_may_hold_what_an_erasure_did_not_have_to_name(
    tmp_path: Path, rules: list[Rule], erasure: Erasure | None, log_start: int, held: tuple[bool, bool]
) -> None:
    """For a file that was searched, and in a run without keys. The file begins at offset 2."""
    live = Erasable(tmp_path)
    view = live.cluster.image.views("t")[0]
    leader = ports_of(live.cluster).storage.replicas(view).leader
    file = next(link.file for link in leader.log().chain if link.start == 2)
    view = replace(
        view,
        rules=tuple(CommittedRule(rule, 0) for rule in rules),
        erasures=() if erasure is None else (erasure,),
        log_start_offset=log_start,
    )
    found = tuple(may_hold(leader.store, file, view, None, searched=searched) for searched in (True, False))
    assert found == held


def test_a_later_compaction_does_not_end_the_wait_for_replaced_files(tmp_path: Path) -> None:
    live = Erasable(tmp_path, **COMPACTED)
    live.cluster.compact("t").raise_for_failures()
    assert not live.erase(KEY).whole
    for row in MORE:
        live.put(row)
    live.cluster.compact("t").raise_for_failures()
    assert not live.erase().whole
    live.clock.sleep(61)
    assert live.erase().whole
    assert traces(live, KEY, SECRET) == []


def test_a_run_without_keys_waits_for_files_that_compaction_replaced(tmp_path: Path) -> None:
    """Compaction had removed every record of the key, so no erasure names an offset."""
    live = Erasable(tmp_path, fill=False, **COMPACTED, delete_retention_ms="0")
    rows: tuple[Row, ...] = ((KEY, SECRET), (KEY, None), (OTHER, "1"), *MORE)
    for row in rows[:3]:
        live.put(row)
    live.cluster.compact("t").raise_for_failures()
    for row in rows[3:]:
        live.put(row)
    live.clock.sleep(1)
    live.cluster.compact("t").raise_for_failures()
    assert not live.erase(KEY).whole
    assert not live.erase().whole
    live.clock.sleep(61)
    assert live.erase().whole
    assert traces(live, KEY, SECRET) == []


def test_objects_that_a_compaction_replaced_are_waited_for_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Both(tmp_path, file_delete_delay_ms="60000")
    live.cluster.compact("t").raise_for_failures()
    assert not live.erase(KEY).whole
    live.add(MORE)
    live.cluster.compact("t").raise_for_failures()
    assert not live.erase().whole
    live.clock.sleep(7200)
    pass_the_delay_of_delta(monkeypatch)
    assert live.erase().whole
    live.check_gone(KEY)
