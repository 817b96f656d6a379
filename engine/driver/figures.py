"""Whether a report's operation changed anything, and its figures for an event. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from stratalog.engine.driver.report import Report, Value
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.state.internal_topics import OPERATIONS_TOPIC
from stratalog.partitions.store import StoreCounts

_WORK: Mapping[str, tuple[str, ...]] = {
    "replicate": ("copied_bytes",),
    "elect": ("elected",),
    "merge": ("segments",),
    "compact": ("segments",),
    "tier": ("uploaded_files", "uploaded_bytes"),
    "retain": ("deleted_files", "deleted_bytes", "remote_removed", "remote_removed_bytes"),
    "snapshot": ("made",),
    "vacuum": ("deleted_files", "deleted_bytes"),
    "scrub": (),
    "heal": (),
}
"""Totals that count changes, for recurring jobs."""
_WRITE_NO_HINTS = {"retain"}
"""The recurring jobs for which any write or deletion counts as a change, as it does for all other operations."""

ROUND = "maintain"
"""The job that runs the recurring jobs as its parts."""

_FLOWS = (
    *("records", "deleted_records", "copied_bytes", "uploaded_files", "uploaded_bytes", "segments"),
    *("deleted_files", "deleted_bytes", "remote_removed_bytes"),
)
"""Columns of rows to sum by topic."""
_LEVELS = ("log_start", "log_end", "high_watermark", "remote_end", "pending_bytes", "backlog_bytes")
"""Columns to sum by topic if the rows have all of its partitions."""
_MOST_TOPICS = 100
"""The maximum number of topics with figures in an event; topics with the largest figures are kept."""


def has_changed(report: Report) -> bool:
    """Whether an operation changed anything apart from hints and the log of events, whose upkeep would otherwise
    create new events forever.
    """
    if report.operation == ROUND:
        return any(map(_has_worked, report.parts))
    if report.operation in _WORK.keys() - _WRITE_NO_HINTS:
        return _has_worked(report)
    return have_written(report.counts)


def have_written(counts: StoreCounts) -> bool:
    """Whether the operation wrote to storage or deleted anything."""
    return counts.creates + counts.deletes + counts.copies > 0


def _has_worked(report: Report) -> bool:
    return any(_work(report).values()) or any(
        row.get("joined_s") is not None or row.get("outcome") == "repaired" for row in _others(report)
    )


def figures(report: Report, image: ClusterImage) -> dict[str, int]:
    """The figures by name. A topic's figure is named by the topic's name, a slash, and the name of the figure."""
    found: Counter[str] = Counter()
    for part in report.parts:
        found.update(_work(part))
    found.update({name: value for name, value in report.totals.items() if _counts(name, value)})
    found["requests"] = report.counts.requests
    found["read_bytes"], found["written_bytes"] = report.counts.read_bytes, report.counts.written_bytes
    return {name: value for name, value in found.items() if value} | _by_topic(report, image)


def _work(report: Report) -> dict[str, int]:
    """The totals that count as work, without the totals of the log of events."""
    found = {}
    for name in _WORK.get(report.operation, ()):
        own = sum(_number(row.get(name)) for row in report.rows if row.get("topic") == OPERATIONS_TOPIC)
        found[name] = _number(report.totals.get(name)) - own
    return found


def _others(report: Report) -> Iterator[Mapping[str, Value]]:
    return (row for row in report.rows if row.get("topic") != OPERATIONS_TOPIC)


def _by_topic(report: Report, image: ClusterImage) -> dict[str, int]:
    flows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    levels: defaultdict[str, dict[tuple[str, object], int]] = defaultdict(dict)
    for part in (report, *report.parts):
        for row in _others(part):
            if isinstance(topic := row.get("topic"), str):
                flows[topic].update({name: _number(row.get(name)) for name in _FLOWS})
                numbers = ((name, row.get(name)) for name in _LEVELS)
                levels[topic].update(
                    {(name, row.get("partition")): _number(value) for name, value in numbers if value is not None}
                )
    found: dict[str, int] = {}
    for topic in sorted(flows, key=lambda name: -flows[name].total())[:_MOST_TOPICS]:
        found |= {f"{topic}/{name}": value for name, value in flows[topic].items() if value}
        partitions = len(image.topics[image.topic_ids[topic]].partitions) if topic in image.topic_ids else 0
        for name in _LEVELS:
            of_it = [value for (named, _), value in levels[topic].items() if named == name]
            if len(of_it) == partitions > 0:
                found[f"{topic}/{name}"] = sum(of_it)
    return found


def _counts(name: str, value: Value) -> bool:
    """Whether a total is a count; the time of the next work, for example, is not."""
    return isinstance(value, int) and not isinstance(value, bool) and not name.endswith("_ms")


def _number(value: Value) -> int:
    return int(value) if isinstance(value, int | float) else 0
