"""Probes of a reviewer: crashes, then other runs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.erase_harness import DAY_MS, KEY, SECRET, traces
from tests.unit.faulty_store import Faults
from tests.unit.test_upkeep_erase_of_snapshots import STATE, Erasable

STRIDE = int(os.environ.get("STRIDE", "1"))


def crash(folder: Path, number: int, then: str) -> bool:
    faults = Faults()
    live = Erasable(folder, through=faults.wrap, brokers=4).start()
    live.put([("other-key", "secret-other")])
    left = number

    def die(uri: str, what: str, name: str) -> None:
        nonlocal left
        if what in ("create", "commit", "delete", "stage"):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    faults.before = die
    with suppress(KeyboardInterrupt):
        live.erase(KEY, now=True)
    if left > 0:
        return False
    faults.none()
    wanted = dict(STATE)
    driver = live.driver()
    without_other = False
    for step in then.split("+"):
        if step == "elect":
            driver.elect("t", leader=live.followers()[0], check=False)
        elif step == "none":
            driver.erase("t", None, check=False, now=True)
        elif step == "other":
            report = driver.erase("t", ["other-key"], check=False, now=True)
            if report.whole:
                without_other = True
                assert traces(live, "other-key", "secret-other") == []
        elif step == "put":
            live.put([("new", "1")], driver=driver)
            wanted["new"] = "1"
        elif step == "snap":
            driver.snapshot("t", by_hand=True, check=False)
        elif step == "retain":
            live.clock.sleep(3600)
            driver.retain(check=False)
        elif step == "nobody":
            driver.erase("t", ["nobody"], check=False, now=True)
        elif step == "reassign":
            replicas = [*live.replicas().view.replicas]
            (free,) = {1, 2, 3, 4} - {*replicas}
            driver.reassign({("t", 0): [*replicas[1:], free]}, check=False)
            driver.replicate(check=False)
        elif step == "wipe-snapshot":
            leader = live.leader()
            live.store(leader).delete([stored.name for _, stored in live.log(leader).listing.checkpoints])
        state = (
            {k: v for k, v in live.state(live.leader()).items() if k not in (KEY, "other-key")}
            if step != "wipe-snapshot"
            else wanted
        )
        assert state == wanted, (step, state)
    final = driver.erase("t", [KEY], check=False, now=True)
    if not final.whole:
        live.clock.sleep(31 * DAY_MS / 1000)
        driver.replicate(check=False)
        driver.vacuum(check=False)
        final = driver.erase("t", [KEY], check=False, now=True)
    assert final.whole, final.failures
    if not without_other:
        final = driver.erase("t", ["other-key"], check=False, now=True)
        assert final.whole, final.failures
    assert traces(live, KEY, SECRET, "other-key") == []
    for broker in live.replicas().view.replicas:
        assert live.state(broker) == wanted
    assert driver.verify(deep=True).ok
    return True


@pytest.mark.parametrize(
    "then",
    [
        "none",
        "other",
        "elect+none",
        "elect+other+none",
        "put+snap",
        "snap+elect+put+retain",
        "nobody+other+none",
        "reassign+none",
        "elect+wipe-snapshot+none+put",
        "wipe-snapshot+snap+none",
    ],
)
def test_a_crash_at_each_write_and_then(tmp_path: Path, then: str) -> None:
    bad = []
    number = 1
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            if not crash(folder, number, then):
                break
        except (Exception, AssertionError) as error:
            bad.append(f"{number}: {type(error).__name__} {str(error)[:500]}")
        number += STRIDE
    print(number)
    assert not bad, "\n".join(bad)
