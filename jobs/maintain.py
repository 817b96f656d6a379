"""The one job to schedule: it does what is due, in this order, and no more than the budget allows.

  replicate, elect, merge, tier, retain, snapshot, vacuum, scrub (a rolling verify --deep --heal)

  stratalog maintain                         one run, for a scheduler
  stratalog maintain --every 30s             in one process, until interrupted; a line a round
  stratalog maintain --budget 5m             begins nothing after five minutes, not the next segment of a
                                             partition either; the next run goes on there
  stratalog maintain --budget-bytes 10GiB    nor after 10 GiB; --budget-requests 5000: requests to storage
  stratalog maintain --every 30s --metrics 9409    and serves health and its own costs to Prometheus
  stratalog maintain --every 30s --otlp URL        or pushes them by OTLP (metrics --help)
  stratalog maintain --except scrub,vacuum   the other steps
  stratalog maintain --dry-run               the steps that are due, for how many partitions; the others' times

One look at the brokers tells which partitions have changed, and no others are worked on. replicate and tier are
part of every run; the intervals of the others are configs of the cluster (log.retention.check.interval.ms and
others). Several at once harm nothing. Each step is also a job of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, check_options, count, duration, number, size
from stratalog.jobs.metrics import add_otlp, exposition, otlp_push
from stratalog.jobs.repeat import repeat
from stratalog.jobs.run import Job, JobMain, warn
from stratalog.partitions.errors import InvalidCallError, StorageError, StratalogError


def arguments(parser: argparse.ArgumentParser) -> None:
    add_dry_run(parser, "say which steps are due, and for how many partitions; write nothing")
    parser.add_argument(
        "--only",
        metavar="STEP,STEP",
        type=_steps,
        default=[],
        help="these steps, due or not (with --every: where they are due)",
    )
    parser.add_argument(
        "--except", dest="leave_out", metavar="STEP,STEP", type=_steps, default=[], help="not these"
    )
    parser.add_argument("--budget", metavar="TIME", type=duration, help="begin nothing after so long (5m)")
    parser.add_argument("--budget-bytes", metavar="SIZE", type=size, help="nor after these bytes (10GiB)")
    parser.add_argument("--budget-requests", metavar="N", type=count, help="nor after these requests (5000)")
    often = parser.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="one run, and no more (the default)")
    often.add_argument(
        "--every", metavar="TIME", type=duration, help="so long after each run again (30s), until interrupted"
    )
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        type=_address,
        help="with --every: look at the health after each run, and serve it to Prometheus (host: 127.0.0.1)",
    )
    add_otlp(parser, "with --every: likewise pushed by OTLP after each run, to this address")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host or "127.0.0.1", number(port)


def _steps(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def maintain(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=[("metrics", "every"), ("otlp", "every")])

    def once() -> Report:
        return job.on_workers().maintain(
            only=given.only,
            leave_out=given.leave_out,
            due=given.every is not None,
            budget_s=given.budget,
            budget_bytes=given.budget_bytes,
            budget_requests=given.budget_requests,
            dry_run=given.dry_run,
            check=False,
        )

    if given.every is None:
        return once()
    measured = given.metrics is not None or given.otlp is not None
    show = _measured(job) if measured else job.show_line
    return repeat("maintain", once, show, lambda _: given.every)


def _measured(job: Job) -> Callable[[Report], None]:
    """Shows a run as ever; serves or pushes it, with the health of the cluster then, and what all drivers did.

    Raises: InvalidCallError, EnvironmentUnusableError.
    """
    given, cluster = job.arguments, job.cluster()
    shown = exposition(cluster.file.cluster_id)
    push = None if given.otlp is None else otlp_push(shown, given.otlp)
    if given.metrics is not None:
        host, port = given.metrics
        try:
            at = shown.serve(host, port)
        except OSError as error:
            raise InvalidCallError(f"--metrics {host}:{port} cannot be served: {error.strerror}") from error
        print(f"metrics: http://{host}:{at}/metrics", file=sys.stderr, flush=True)
    new_events = cluster.new_events()

    def show(report: Report) -> None:
        shown.add(report)
        try:
            shown.tell(new_events())
            shown.look(cluster.health())
        except StratalogError:
            shown.look(None)
        job.show_line(report)
        if push is not None:
            try:
                push.push()
            except StorageError as error:  # the receiver is away: the next run pushes all of it again
                warn([str(error)])

    return show


main = JobMain("maintain", __doc__, arguments, maintain)


if __name__ == "__main__":
    sys.exit(main())
