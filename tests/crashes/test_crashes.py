"""A few jobs of a campaign (``make crash RUNS=100`` runs more): spark-submits are killed, or paused and resumed,
at random moments; restarted jobs finish the work, and the log equals its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crashes.campaign import Campaign

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

STRIKES = 5
SEED = 5
"""A seed with a driver that is paused, and continues when another one has done its work."""


def test_jobs_that_are_killed_at_random_moments_lose_nothing_and_leave_nothing_half_done(tmp_path: Path) -> None:
    messages: list[str] = []
    campaign = Campaign(tmp_path, SEED, messages.append)
    campaign.run(STRIKES)
    counts = [tally.counts for tally in campaign.tallies.values()]
    assert sum(count["struck"] for count in counts) == STRIKES
    assert sum(count["paused"] for count in counts) > 0
    assert sum(count["findings"] for count in counts) == 0
    assert "all of the source, each once, in order" in messages[-2]
