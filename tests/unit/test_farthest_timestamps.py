"""Producers may give any timestamp of 64 bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch


@pytest.mark.parametrize("timestamp_us", [2**63 - 1, 2**63 - 808, -(2**63), -(2**63) + 1])
@pytest.mark.slow
def test_a_tiered_record_of_the_farthest_times_is_sound(tmp_path: Path, timestamp_us: int) -> None:
    live = LiveCluster(tmp_path)
    live.tiered()
    live.cluster.append_batches("t", {0: [batch(["a"], timestamp_us)]}).raise_for_failures()
    live.fill(["b"])
    live.cluster.tier().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    live.cluster.heal().raise_for_failures()
    assert live.read() == {0: ["a", "b"]}
