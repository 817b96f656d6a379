"""The command line of bootstrap."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.jobs.bootstrap import main as bootstrap
from tests.unit.cluster_harness import LiveCluster, live_and_shared
from tests.unit.jobs_harness import calls, report


def built(folder: Path) -> LiveCluster:
    """Topic ``t`` on two of four brokers, neither of them broker 1 or 4."""
    live = LiveCluster(folder, brokers=4, on_disk=True)
    live.cluster.brokers.fence([1, 4]).raise_for_failures()
    live.topic(copies=2)
    live.cluster.brokers.unfence([1, 4]).raise_for_failures()
    live.fill("ab")
    return live


live, shared = live_and_shared(built)
run = calls(bootstrap)


def test_a_broker_is_added_and_replaces_another(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(live, "4", "--add", "--topics", "t", "--json") == 0
    assert report(capsys)["totals"]["copied_bytes"] == sum(map(len, live.data(2).values()))
    assert live.isr() == {2, 3, 4}
    assert run(live, "1", "--instead-of", "4") == 0
    assert live.isr() == {1, 2, 3}


@pytest.mark.parametrize(
    "argv",
    [
        ("4", "--add"),
        ("3,4", "--instead-of", "2"),
        ("4", "--instead-of", "x"),
        ("4", "--add", "--topics", "nobody"),
        ("--add",),
    ],
    ids=" ".join,
)
def test_a_wrong_call_changes_nothing(shared: LiveCluster, argv: tuple[str, ...]) -> None:
    with shared.unchanged():
        assert run(shared, *argv) == 2
