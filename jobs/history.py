"""List the operations that ran on a cluster, newest first, with time, user and outcome. Changes nothing.

  stratalog history                                  the latest 100 events
  stratalog history --since 7d --operation tier      tier runs of the last seven days
  stratalog history --topic flights --limit 20       events that name a topic or have figures about it
  stratalog history --json                           all columns

Appends and offset commits write no events, because the log itself records them. A destructive operation also
writes an event before it acts. The topic __operations holds the events. With STRATALOG_HISTORY=off, a process
writes no events.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from stratalog import Report
from stratalog.jobs.arguments import count
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.bounded import parse_json

_WIDEST = 80
"""The maximum length of a cell, in characters; --json prints the whole text."""


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, "jobs.Jobs.history", special={"limit": {"type": count}})


def history(job: Job) -> Report:
    found = call(job.cluster().history, job.arguments)
    return found if job.arguments.json else short(found)


def short(report: Report) -> Report:
    """Return the history as a readable table, with the totals of all topics together, and the first note of each
    event."""
    rows = []
    for row in report.rows:
        totals = {name: value for name, value in parse_json(str(row["totals"])).items() if "/" not in name}
        notes = parse_json(str(row["notes"]))
        rows.append(
            {
                "time": str(row["time"])[:19],
                "operation": row["operation"],
                "outcome": row["outcome"] or row["phase"],
                "user": row["user"],
                "run": row["run"] if row["job"] is None else f"{row['job']} {row['run']}",
                "ms": row["duration"],
                "did": " ".join(f"{name}={value}" for name, value in totals.items()),
                "arguments": _cut(str(row["arguments"])),
                "first note": _cut(notes[0]) if notes else None,
            }
        )
    return replace(report, rows=rows)


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


main = JobMain("history", __doc__, arguments, history, runs="driver")


if __name__ == "__main__":
    sys.exit(main())
