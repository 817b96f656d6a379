"""The bounds of batches on their way to Python, without Spark: the settings of a session, and their
restoration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from stratalog.engine.spark.narrow import BATCH_BYTES, BATCH_RECORDS, bounded_by_bytes, bounded_by_records

RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


class Conf:
    """A session's settings; ``refuses``: like platforms that allow no changes."""

    def __init__(self, refuses: bool = False, **settings: str) -> None:
        self.settings = {RECORDS: "10000", **settings}
        self._refuses = refuses

    def get(self, key: str, default: str | None) -> str | None:
        return self.settings.get(key, default)

    def set(self, key: str, value: str) -> None:
        if self._refuses:
            raise AnalysisException("[CONFIG_NOT_AVAILABLE]")
        self.settings[key] = value

    def unset(self, key: str) -> None:
        del self.settings[key]


def session(conf: Conf) -> Any:
    return SimpleNamespace(conf=conf)


@pytest.mark.parametrize(
    ("expected", "bytes_inside"),
    [
        ({}, BATCH_BYTES),
        ({BYTES: "2147483647"}, BATCH_BYTES),
        ({BYTES: "64m"}, BATCH_BYTES),
        ({BYTES: "4096"}, 4096),
    ],
)
def test_wide_records_come_in_batches_of_bounded_bytes_in_any_session(
    expected: dict[str, str], bytes_inside: int
) -> None:
    conf = Conf(**expected)
    before = dict(conf.settings)
    with bounded_by_bytes(session(conf)):
        assert conf.settings == {RECORDS: str(BATCH_RECORDS), BYTES: str(bytes_inside)}
    assert conf.settings == before


@pytest.mark.parametrize("bounded", [bounded_by_bytes, bounded_by_records])
def test_a_session_that_refuses_settings_keeps_its_own(bounded: Any) -> None:
    conf = Conf(refuses=True)
    with bounded(session(conf)):
        assert conf.settings == {RECORDS: "10000"}
    assert conf.settings == {RECORDS: "10000"}


@pytest.mark.parametrize("own", [None, "64m", "4096"])
@pytest.mark.parametrize("order", [(bounded_by_records, bounded_by_bytes), (bounded_by_bytes, bounded_by_records)])
def test_blocks_of_two_threads_leave_the_session_its_own_settings(own: str | None, order: tuple[Any, Any]) -> None:
    """The first block ends before the second. While both run, neither loses its bound."""
    conf = Conf(**({} if own is None else {BYTES: own}))
    before, one = dict(conf.settings), session(conf)
    first, second = (bounded(one) for bounded in order)
    first.__enter__()
    second.__enter__()
    least = "4096" if own == "4096" else str(BATCH_BYTES)
    assert conf.settings == {RECORDS: str(BATCH_RECORDS), BYTES: least}
    first.__exit__(None, None, None)
    alone = least if order[1] is bounded_by_bytes else "2147483647"
    assert conf.settings == {RECORDS: str(BATCH_RECORDS), BYTES: alone}
    second.__exit__(None, None, None)
    assert conf.settings == before
