"""How far all consumer groups are behind, streams among them, as metrics: Kafka's ``records-lag`` of consumers."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Report, Value
from stratalog.engine.records.groups import all_groups, lag_rows, list_leaders

RECORDS_LAG = "records-lag"


def lag_metrics(context: Context) -> Report:
    """The lag of each group in each partition of the topics that it has committed for, as ``lag`` tells it. A
    partition of ``__consumer_offsets``, or of these topics, that cannot be looked at is a failure in the report,
    once. Each partition is looked at once, however many groups there are.

    Raises: errors of reading the metadata.
    """
    with context.run("metrics") as run:
        image = context.metadata.image()
        found, unread = all_groups(context, image)
        leaders, unlisted = list_leaders(context, image, found.values())
        run.rows += [
            _row(name, row)
            for name, group in sorted(found.items())
            for row in lag_rows(image, group, leaders)
            if row["lag"] is not None
        ]
        run.failures += [*unread, *unlisted]
    return run.report()


def _row(group: str, of_lag: Mapping[str, Value]) -> dict[str, Value]:
    return {
        "metric": RECORDS_LAG,
        "group": group,
        "topic": of_lag["topic"],
        "partition": of_lag["partition"],
        "value": of_lag["lag"],
    }
