"""A few drivers of streams, killed in the middle of their batches, for each way to write a stream. (``python -m
tests.crashes --stream sink --runs 30`` runs more.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crashes.stream_driver import WAYS
from tests.crashes.streams import StreamCampaign

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


@pytest.mark.long("starts drivers again and again")
@pytest.mark.parametrize("way", WAYS)
def test_drivers_that_are_killed_in_the_middle_of_their_batches_copy_every_record_once(
    tmp_path: Path, way: str
) -> None:
    messages: list[str] = []
    assert StreamCampaign(tmp_path, 3, messages.append).run(way, 2).total() == 2
