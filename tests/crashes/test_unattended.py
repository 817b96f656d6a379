"""A minute of the unattended run (``make unattended`` takes half an hour), on a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crashes.appender import KEPT, LEDGER, TIERED
from tests.crashes.unattended import Unattended
from tests.s3_server import S3Endpoint

pytestmark = [pytest.mark.s3, pytest.mark.nightly]


def test_appenders_and_maintain_that_are_killed_and_a_lost_broker_leave_a_log_in_good_order(
    tmp_path: Path, s3_endpoint: S3Endpoint
) -> None:
    messages: list[str] = []
    found = Unattended(tmp_path, s3_endpoint, minutes=1, seed=3, say=messages.append).run()
    assert min(found[topic] for topic in (KEPT, TIERED, LEDGER)) > 0
    assert any(" is lost, with " in line for line in messages)
    assert any(line.startswith("nothing is open ") for line in messages)
