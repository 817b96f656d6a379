"""A small campaign of ``python -m tests.kafka``: each kind of event once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.campaign import EVENTS, Campaign

pytestmark = pytest.mark.kafka


def test_all_records_are_here_whatever_happened_there_and_to_the_mirrors(kafka_jars: None, tmp_path: Path) -> None:
    counts = Campaign(tmp_path, 1, print).run(30_000, 3)
    assert all(counts[event] == 1 for event in EVENTS)
    assert counts["mirrors killed"] + counts["mirrors ended before"] == 3
    assert (counts["LEADER_NOT_AVAILABLE"], counts["LOG_TRUNCATION"]) == (1, 3)
    assert counts["records compared"] > 20_000
