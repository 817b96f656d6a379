"""Probes of a reviewer: another driver acts at each storage call of an erasure."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.erase_harness import KEY, OTHER, SECRET, traces
from tests.unit.faulty_store import Faults
from tests.unit.test_upkeep_erase_of_snapshots import STATE, Erasable

STRIDE = int(os.environ.get("STRIDE", "7"))
FIRST = int(os.environ.get("FIRST", "0"))
DELAY = os.environ.get("DELAY", "0")


def view_of(other: Any) -> Any:
    """The partition. The probe acts inside a call of ``live.cluster``, which may hold that cluster's lock."""
    image = other.image
    return image.view(image.topic("t").topic_id, 0)


def followers_of(other: Any) -> list[int]:
    view = view_of(other)
    return [one for one in view.isr if one != view.leader]


def snap(live: Erasable, other: Any) -> dict[str, str]:
    other.snapshot("t", by_hand=True, check=False)
    return {}


def retain(live: Erasable, other: Any) -> dict[str, str]:
    live.clock.sleep(3600)
    other.retain(check=False)
    return {}


def append(live: Erasable, other: Any) -> dict[str, str]:
    live.put([("new", "1"), (OTHER, "4")], driver=other)
    return {"new": "1", OTHER: "4"}


def append_and_snap(live: Erasable, other: Any) -> dict[str, str]:
    live.put([("new", "1"), (OTHER, "4")], driver=other)
    other.snapshot("t", by_hand=True, check=False)
    return {"new": "1", OTHER: "4"}


def elect(live: Erasable, other: Any) -> dict[str, str]:
    other.elect("t", leader=followers_of(other)[0], check=False)
    return {}


def elect_and_append(live: Erasable, other: Any) -> dict[str, str]:
    other.elect("t", leader=followers_of(other)[0], check=False)
    live.put([("new", "1"), (OTHER, "4")], driver=other)
    return {"new": "1", OTHER: "4"}


def merge(live: Erasable, other: Any) -> dict[str, str]:
    other.merge(check=False)
    return {}


def replicate(live: Erasable, other: Any) -> dict[str, str]:
    other.replicate(check=False)
    return {}


def erase_other(live: Erasable, other: Any) -> dict[str, str]:
    other.erase("t", ["nobody-else"], check=False)
    other.erase("t", ["other-key"], check=False)
    return {}


def reassign(live: Erasable, other: Any) -> dict[str, str]:
    replicas = [*view_of(other).replicas]
    (free,) = {1, 2, 3, 4} - {*replicas}
    other.reassign({("t", 0): [*replicas[1:], free]}, check=False)
    other.replicate(check=False)
    return {}


def vacuum(live: Erasable, other: Any) -> dict[str, str]:
    other.vacuum(check=False)
    return {}


def append_key(live: Erasable, other: Any) -> dict[str, str]:
    """Acknowledged while the erasure runs: it stays if its offset is at or above the last bound."""
    live.put([(KEY, "later"), ("new", "1")], driver=other)
    return {"new": "1", KEY: "later"}


def erase_same(live: Erasable, other: Any) -> dict[str, str]:
    report = other.erase("t", [KEY], check=False, now=True)
    if report.whole:
        assert traces(live, KEY, SECRET) == [], "the other's certificate"
    return {}


def reassign_only(live: Erasable, other: Any) -> dict[str, str]:
    replicas = [*view_of(other).replicas]
    (free,) = {1, 2, 3, 4} - {*replicas}
    other.reassign({("t", 0): [*replicas[1:], free]}, check=False)
    return {}


ACTS = {
    f.__name__: f
    for f in (
        snap,
        retain,
        append,
        append_and_snap,
        elect,
        elect_and_append,
        merge,
        replicate,
        erase_other,
        reassign,
        vacuum,
        append_key,
        erase_same,
        reassign_only,
    )
}


def run(folder: Path, act: Callable[[Erasable, Any], dict[str, str]], number: int, which: str) -> bool:
    """Returns whether the call was reached."""
    faults = Faults()
    live = Erasable(folder, through=faults.wrap, brokers=4).start(file_delete_delay_ms=DELAY)
    if act is erase_other:
        live.put([("other-key", "secret-other")])
    other = live.driver()
    count, done = 0, []
    added: dict[str, str] = {}

    def before(uri: str, what: str, name: str) -> None:
        nonlocal count
        if done:
            return
        count += 1
        if count == number:
            done.append(True)
            added.update(act(live, other))

    if which == "erase":
        faults.before = before
        report = live.erase(KEY, now=True)
    else:
        live.put([(OTHER, "3")])
        reports = []

        def erase(live: Erasable, other: Any) -> dict[str, str]:
            reports.append(other.erase("t", [KEY], check=False, now=True))
            return {}

        act = erase
        faults.before = before
        live.cluster.snapshot("t", by_hand=True, check=False)
        if not reports:
            return False
        report = reports[0]
    faults.none()
    wanted = {**STATE, **added}
    if not done:
        return False
    if act is append_key:
        log_start = live.replicas().view.log_start_offset
        state = live.state(live.leader())
        if log_start == 6:  # the append has offsets 6 and 7
            assert state == wanted, "an acknowledged record above the bound is lost"
        else:
            wanted.pop(KEY)
            assert state == wanted, "a record below the bound is left"
        assert not report.whole or traces(live, SECRET) == []
        wanted.pop(KEY, None)
        final = live.driver().erase("t", [KEY], check=False, now=True)
        assert final.whole, final.failures
        for broker in live.replicas().view.replicas:
            assert live.state(broker) == wanted, broker
        assert traces(live, KEY, SECRET) == []
        return True
    seen = live.driver()
    leader = live.leader()
    state = live.state(leader)
    if report.whole:
        assert traces(live, KEY, SECRET) == [], "whole"
        assert state == wanted
    assert {k: v for k, v in state.items() if k not in (KEY, "other-key")} == wanted
    seen.replicate(check=False)
    final = seen.erase("t", [KEY], check=False, now=True)
    if not final.whole:
        seen.replicate(check=False)
        live.clock.sleep(3600)
        seen.vacuum(check=False)
        final = seen.erase("t", [KEY], check=False, now=True)
    assert final.whole, final.failures
    assert traces(live, KEY, SECRET) == []
    for broker in live.replicas().view.replicas:
        got = {k: v for k, v in live.state(broker).items() if k != "other-key"}
        assert got == wanted, broker
    live.put([(OTHER, "9")])
    live.take()
    assert {k: v for k, v in live.state(leader).items() if k != "other-key"} == {**wanted, OTHER: "9"}
    assert seen.verify(deep=True).ok
    return True


@pytest.mark.parametrize("act", [*ACTS])
def test_another_driver_acts_at_each_call_of_an_erasure(tmp_path: Path, act: str) -> None:
    bad: list[str] = []
    number = FIRST + 1
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            if not run(folder, ACTS[act], number, "erase"):
                break
        except (Exception, AssertionError) as error:
            bad.append(f"{number}: {type(error).__name__} {str(error)[:600]}")
        number += STRIDE
    print(number)
    assert not bad, "\n".join(bad)


def test_an_erasure_at_each_call_of_a_snapshot_job(tmp_path: Path) -> None:
    bad: list[str] = []
    number = FIRST + 1
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            if not run(folder, snap, number, "snap"):
                break
        except (Exception, AssertionError) as error:
            bad.append(f"{number}: {type(error).__name__} {str(error)[:600]}")
        number += STRIDE
    print(number)
    assert not bad, "\n".join(bad)
