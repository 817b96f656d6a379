"""Snapshots of topics with cleanup.policy=snapshot, internal ones too, and of the metadata log: make them, copy
them, move log starts. Without --topics all of these; the metadata log is named __cluster_metadata.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from engine import Failure, Report
from jobs.arguments import add_dry_run, add_topics, count, job_parser
from jobs.run import Job, explain, run_job, show_report
from partitions.clock import Clock, SystemClock
from partitions.errors import InvalidCallError, StratalogError


def arguments() -> argparse.ArgumentParser:
    """What this job takes."""
    parser = job_parser("snapshot", __doc__ or "")
    add_topics(parser)
    add_dry_run(parser)
    parser.add_argument(
        "--by-hand", action="store_true", help="of all that is new, whatever the policy (metadata.snapshot.*) says"
    )
    often = parser.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="one run, and no more (the default)")
    often.add_argument(
        "--every", metavar="SECONDS", type=count, help="again and again, so long after each run, until interrupted"
    )
    return parser


def snapshot(job: Job) -> Report:
    """The job."""
    given = job.arguments

    def once() -> Report:
        return job.on_workers().snapshot(given.topics, by_hand=given.by_hand, dry_run=given.dry_run)

    if given.every is None:
        return once()
    return again_and_again(
        once, given.every, lambda report: show_report(report, as_json=given.json), SystemClock()
    )


def again_and_again(
    once: Callable[[], Report], every_s: int, show: Callable[[Report], None], clock: Clock
) -> Report:
    """Run, show the report, wait, for ever. A run that fails is shown like any other, and the next one tries
    again: what is done stays done.

    Raises: InvalidCallError, which no later run would get past; KeyboardInterrupt.
    """
    while True:
        try:
            report = once()
        except InvalidCallError:
            raise
        except StratalogError as error:
            code, message, _ = explain(error) or (error.code, str(error), 1)
            report = Report("snapshot", (), [Failure("snapshot", code, message)])
        show(report)
        clock.sleep(every_s)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_job("snapshot", arguments(), snapshot, argv)


if __name__ == "__main__":
    sys.exit(main())
