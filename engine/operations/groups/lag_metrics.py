"""How far all consumer groups are behind, streams among them, as metrics: Kafka's ``records-lag`` of consumers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from engine.context import Context
from engine.operations.groups.admin import groups
from engine.operations.groups.groups import lag
from engine.report import Report, Value
from partitions.errors import GroupIdNotFoundError

RECORDS_LAG = "records-lag"


def lag_metrics(context: Context) -> Report:
    """The lag of each group in each partition of the topics that it has committed for, as ``lag`` tells it. What
    cannot be looked at is a failure in the report.
    """
    rows: list[dict[str, Value]] = []
    with context.measured() as measure:
        listed = groups(context)
        failures = list(listed.failures)
        for group in (str(row["group"]) for row in listed.rows):
            with suppress(GroupIdNotFoundError):  # forgotten meanwhile
                report = lag(context, group)
                failures += report.failures
                rows += (_row(group, row) for row in report.rows if row["lag"] is not None)
    return Report("metrics", rows, failures, {}, False, measure.seconds, measure.counts)


def _row(group: str, of_lag: Mapping[str, Value]) -> dict[str, Value]:
    return {
        "metric": RECORDS_LAG,
        "group": group,
        "topic": of_lag["topic"],
        "partition": of_lag["partition"],
        "value": of_lag["lag"],
    }
