"""Run the upkeep steps that are due, in this order, within the budget. It is the only job you must schedule.

  replicate, elect, merge, tier, retain, snapshot, vacuum, scrub (a rolling heal)

  stratalog maintain                         one run, for a scheduler
  stratalog maintain --every 30s             run in one process until interrupted; prints one line per round
  stratalog maintain --budget 5m             begin nothing after five minutes, not even the next segment of a
                                             partition; the next run continues there
  stratalog maintain --budget-bytes 10GiB    nor after 10 GiB; --budget-requests 5000: storage requests
  stratalog maintain --every 30s --metrics 9409    also serve health and the costs of the runs to Prometheus
  stratalog maintain --every 30s --otlp URL        or push them by OTLP (see metrics --help)
  stratalog maintain --exclude scrub,vacuum  run the other steps
  stratalog maintain --dry-run               list due steps with their partitions, and when the others are due

One look at the brokers finds the partitions that have changed; only these are worked on. replicate and tier are
part of every run; configs of the cluster set the intervals of the others (log.retention.check.interval.ms and
others). Several runs at once do no harm. Each step is also a job of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from stratalog import Report
from stratalog.jobs.arguments import add_every, check_options, count, number
from stratalog.jobs.declared import Special, add_declared, call
from stratalog.jobs.metrics import add_otlp, exposition, otlp_push
from stratalog.jobs.repeat import repeat
from stratalog.jobs.run import Job, JobMain, warn
from stratalog.partitions.errors import InvalidCallError, StorageError, StratalogError

_STEPS: Special = {
    "only": {"metavar": "STEP,STEP", "help": "run only these steps, due or not (with --every: only when due)"},
    "exclude": {"metavar": "STEP,STEP"},
    "budget_requests": {"type": count},
}


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, "jobs.Jobs.maintain", leave_out=["due"], special=_STEPS)
    add_every(parser)
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        type=_address,
        help="with --every: check health after each run, and serve it to Prometheus (host: 127.0.0.1)",
    )
    add_otlp(parser, "with --every: check health after each run, and push it by OTLP to this address")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host or "127.0.0.1", number(port)


def maintain(job: Job) -> Report:
    given = job.arguments
    check_options(given, needs=[("metrics", "every"), ("otlp", "every")])

    def once() -> Report:
        report: Report = call(job.on_workers().maintain, given, due=given.every is not None)
        return report

    if given.every is None:
        return once()
    measured = given.metrics is not None or given.otlp is not None
    show = _measured(job) if measured else job.show_line
    return repeat("maintain", once, show, lambda _: given.every)


def _measured(job: Job) -> Callable[[Report], None]:
    """A function that shows a run as usual, and serves or pushes its figures with the health of the cluster after
    it and the operations of all drivers.

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
            raise InvalidCallError(f"--metrics {host}:{port}: cannot listen there: {error.strerror}") from error
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
            except StorageError as error:  # the receiver is unreachable: the next run pushes all figures again
                warn([str(error)])

    return show


main = JobMain("maintain", __doc__, arguments, maintain)


if __name__ == "__main__":
    sys.exit(main())
