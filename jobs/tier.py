"""Copy sealed segments of tiered topics to the remote tier, and commit them to its Delta tables.

stratalog tier                all partitions, once
stratalog tier --due          due partitions, once: remote.log.manager.task.interval.ms after a success, at
                              growing intervals after failures
stratalog tier --every 30s    due partitions, repeatedly: at most 30 s after each run, sooner if a partition is
                              due sooner
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from stratalog import Report
from stratalog.jobs.arguments import add_every
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.repeat import repeat
from stratalog.jobs.run import Job, JobMain

SHORTEST_PAUSE_S = 0.1


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, "jobs.Jobs.tier", leave_out=["due"])
    often = add_every(parser, "tier due partitions at least every TIME (30s), until interrupted")
    add_declared(often, "jobs.Jobs.tier", only=["due"])


def tier(job: Job) -> Report:
    given = job.arguments
    tier = job.on_workers().tier
    if given.every is None:
        return call(tier, given)
    once = partial(call, tier, given, due=True)
    return repeat("tier", once, job.show, lambda report: until_due_s(report, given.every))


def until_due_s(report: Report, every_s: float) -> float:
    """Return the seconds to sleep after a run: until the next partition is due, at most ``every_s``. With this
    limit, a run soon notices new partitions and moved leaders.
    """
    next_ms = report.totals.get("next_ms")
    pause_s = every_s if next_ms is None else min(every_s, float(next_ms) / 1000)
    return max(SHORTEST_PAUSE_S, pause_s)


main = JobMain("tier", __doc__, arguments, tier)


if __name__ == "__main__":
    sys.exit(main())
