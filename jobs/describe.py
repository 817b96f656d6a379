"""List every partition of the topics as a table. Changes nothing.

  stratalog describe                   one row per partition; all internal topics share one row
  stratalog describe --topics flights  only these topics, which may be internal
  stratalog describe --trouble --sort lag:desc    only partitions whose state is not ok, the largest lag first
  stratalog describe --wide            one row per replica, with all details (also with --json)

end: the high watermark, up to which records can be read. lag: the number of records that the leader has, but the
slowest available replica lacks. tiered: the offset up to which the log is in the remote tier.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from stratalog import Report
from stratalog.engine.driver.report import Value
from stratalog.jobs.arguments import add_dry_run
from stratalog.jobs.declared import add_declared
from stratalog.jobs.run import Job, JobMain
from stratalog.jobs.tables import add_sort

Row = Mapping[str, Value]


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, "looks.Looks.describe")
    add_dry_run(parser, "no effect: this job changes nothing anyway")
    parser.add_argument("--wide", action="store_true", help="one row per replica, with all details")
    parser.add_argument("--trouble", action="store_true", help="only partitions whose state is not ok")
    parser.add_argument("--exclude-internal", action="store_true", help="omit internal topics")
    add_sort(parser)


def describe(job: Job) -> Report:
    given = job.arguments
    report = job.cluster().describe(given.topics)
    if given.exclude_internal:
        # imported here, because --help does not need Arrow
        from stratalog.engine.state.internal_topics import INTERNAL_TOPICS

        report = replace(report, rows=[row for row in report.rows if row["topic"] not in INTERNAL_TOPICS])
    if given.trouble:
        rows = [row for group in _partitions(report) if _partition(group)["state"] != "ok" for row in group]
        report = replace(report, rows=rows)
    return report if given.wide or given.json else narrow(report)


def _partitions(report: Report) -> list[list[Row]]:
    """Return the rows of replicas, by partition."""
    return [list(found) for _, found in groupby(report.rows, lambda row: (row["topic"], row["partition"]))]


def narrow(report: Report) -> Report:
    """Reduce a report of replicas to one row per partition."""
    rows = [_partition(group) for group in _partitions(report)]
    totals: dict[str, Value] = {"partitions": len(rows)}
    if (empty := report.totals.get("empty_internal_replicas")) is not None:
        totals["empty_internal_replicas"] = empty
    return replace(report, rows=rows, totals=totals)


def _partition(replicas: Sequence[Row]) -> Row:
    """Return the row of a partition, from the rows of its replicas."""
    first = replicas[0]
    leader = next((row for row in replicas if str(row["role"]).startswith("leader")), None)
    ends = [int(row["log_end"]) for row in replicas if row["log_end"] is not None]
    leader_end = None if leader is None else leader["log_end"]
    known = [int(row["high_watermark"]) for row in replicas if row["high_watermark"] is not None]
    return {
        "topic": first["topic"],
        "partition": first["partition"],
        "leader": None if leader is None else leader["broker"],
        "isr": first["isr"],
        "end": max(known, default=None),
        "lag": None if leader_end is None else max(0, int(leader_end) - min(ends)),
        "tiered": first["remote_end"],
        "state": _state(replicas, leader),
    }


def _state(replicas: Sequence[Row], leader: Row | None) -> str:
    """Return the problem of a partition in a few words, or ``ok``."""
    away = [row for row in replicas if row["log_end"] is None]
    if leader is None:
        return "unavailable"
    if leader in away:
        return "leader, unreachable"
    if len(str(replicas[0]["isr"]).split(",")) < len(replicas):
        return "under-replicated"
    return "replica unreachable" if away else "ok"


main = JobMain("describe", __doc__, arguments, describe, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
