"""Probes of a reviewer: each single file of a replica is lost, then the topic goes on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from stratalog.engine.upkeep.erasing import erase as erasing
from tests.unit.erase_harness import DAY_MS, KEY, SECRET, traces
from tests.unit.test_upkeep_erase_of_snapshots import STATE, Erasable


def one(folder: Path, number: int, who: str, then: str, stage: str, copies: int) -> str | None:
    live = Erasable(folder).start(copies=copies)
    wanted = dict(STATE)
    if stage == "crash":
        patch = pytest.MonkeyPatch()

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        with patch.context() as patched:
            patched.setattr(erasing, "erase_partition", stop)
            with suppress(KeyboardInterrupt):
                live.erase(KEY, now=True)
    elif stage == "before":
        live.take()
        live.cluster.retain()
    else:
        assert live.erase(KEY, now=True).whole
    live.put([("new", "1")])
    wanted["new"] = "1"
    live.put([("new", "2")])
    wanted["new"] = "2"
    broker = live.leader() if who == "leader" else live.followers()[0]
    replica = live.replica(broker)
    names = sorted(stored.name for stored in replica.store.list(replica.folder))
    if number >= len(names):
        return None
    lost = names[number].rpartition("/")[2]
    replica.store.delete([names[number]])
    driver = live.driver()
    for step in then.split("+"):
        if step == "heal":
            driver.heal(check=False)
        elif step == "replicate":
            driver.replicate(check=False)
        elif step == "snap":
            driver.snapshot("t", by_hand=True, check=False)
        elif step == "erase":
            driver.erase("t", [KEY], check=False, now=True)
        elif step == "none":
            driver.erase("t", None, check=False, now=True)
        elif step == "retain":
            live.clock.sleep(3600)
            driver.retain(check=False)
        elif step == "elect":
            driver.elect("t", leader=live.followers()[0], check=False)
        elif step == "put":
            driver.append_batches("t", {}, check=False) if False else None
            with suppress(Exception):
                live.put([("new", "3")], driver=driver)
                wanted["new"] = "3"
    driver.heal(check=False)
    driver.replicate(check=False)
    driver.heal(check=False)
    final = driver.erase("t", [KEY], check=False, now=True)
    if not final.whole:
        live.clock.sleep(2 * DAY_MS / 1000)
        driver.replicate(check=False)
        driver.vacuum(check=False)
        final = driver.erase("t", [KEY], check=False, now=True)
    if copies > 1:
        assert final.whole, (lost, final.failures)
    if final.whole:
        assert traces(live, KEY, SECRET) == [], lost
    for each in live.replicas().view.replicas:
        got = {k: v for k, v in live.state(each).items() if k != KEY}
        assert got == wanted, (lost, each, got)
    return lost


@pytest.mark.parametrize("copies", [2])
@pytest.mark.parametrize("stage", ["crash", "after", "before"])
@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize("then", ["erase", "none+put+snap", "snap+retain", "elect+snap+erase", "put+retain+erase"])
def test_each_file_is_lost(tmp_path: Path, who: str, then: str, stage: str, copies: int) -> None:
    bad, number = [], 0
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            lost = one(folder, number, who, then, stage, copies)
            if lost is None:
                break
        except (Exception, AssertionError) as error:
            bad.append(f"{number}: {type(error).__name__} {str(error)[:700]}")
        number += 1
    print(number)
    assert not bad, "\n".join(bad)
