"""Copy sealed segments of tiered topics to the remote tier, and commit them to its Delta tables.

tier                    all partitions, once
tier --due              once, only partitions whose time has come: after a success in
                        remote.log.manager.task.interval.ms, after a failure at growing intervals
tier --every 30s        what is due, again and again: at the latest so long after each run, sooner where a
                        partition is due sooner
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from engine import Failure, Report
from jobs.arguments import add_dry_run, add_topics, duration, job_parser
from jobs.run import Job, explain, run_job, show_report
from partitions.clock import Clock, SystemClock
from partitions.errors import InvalidCallError, StratalogError

SHORTEST_PAUSE_S = 0.1


def arguments() -> argparse.ArgumentParser:
    """What this job takes."""
    parser = job_parser("tier", __doc__ or "")
    add_topics(parser)
    add_dry_run(parser)
    often = parser.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="one run over all partitions (the default)")
    often.add_argument("--due", action="store_true", help="one run, only partitions whose time has come")
    often.add_argument(
        "--every", metavar="TIME", type=duration, help="run what is due at least so often (30s), until interrupted"
    )
    return parser


def tier(job: Job) -> Report:
    """The job."""
    given = job.arguments
    cluster = job.on_workers()

    def run(due: bool) -> Report:
        return cluster.tier(given.topics, due=due, dry_run=given.dry_run)

    if given.every is None:
        return run(given.due)
    return as_it_comes_due(
        lambda: run(True), given.every, lambda report: show_report(report, as_json=given.json), SystemClock()
    )


def as_it_comes_due(
    once: Callable[[], Report], every_s: float, show: Callable[[Report], None], clock: Clock
) -> Report:
    """Run, show the report, sleep until the next partition is due, at most ``every_s``: new partitions, and moved
    leaders, are seen that soon. A run that fails is shown like any other, and the next one tries again.

    Raises: InvalidCallError, which no later run would get past; KeyboardInterrupt.
    """
    while True:
        try:
            report = once()
        except InvalidCallError:
            raise
        except StratalogError as error:
            code, message, _ = explain(error) or (error.code, str(error), 1)
            report = Report("tier", (), [Failure("tier", code, message)])
        show(report)
        next_ms = report.totals.get("next_ms")
        pause_s = every_s if next_ms is None else min(every_s, float(next_ms) / 1000)
        clock.sleep(max(SHORTEST_PAUSE_S, pause_s))


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_job("tier", arguments(), tier, argv)


if __name__ == "__main__":
    sys.exit(main())
