"""Run the upkeep steps that are due, in this order, within the budget. This is the only job you must schedule.

  replicate, elect, merge, tier, retain, snapshot, vacuum, scrub (a rolling heal)

  stratalog maintain                         one run, for a scheduler
  stratalog maintain --every 30s             run repeatedly until interrupted; prints one line per run
  stratalog maintain --budget 5m             start no work after five minutes, not even the next segment of a
                                             partition; the next run continues there
  stratalog maintain --budget-bytes 10GiB    start no work after reading and writing 10 GiB;
                                             --budget-requests limits the storage requests
  stratalog maintain --every 30s --metrics 9409    also serve health and the costs of the runs to Prometheus
  stratalog maintain --every 30s --otlp URL        also push these figures by OTLP (see metrics --help)
  stratalog maintain --every 30s --page 8080       also serve the page of the cluster at http://127.0.0.1:8080/
  stratalog maintain --exclude scrub,vacuum  run the other steps
  stratalog maintain --dry-run               list due steps with their partitions, and when the other steps are due

A run lists the brokers once to find the partitions that have changed, and works only on these partitions.
replicate and tier are part of every run; cluster configs set the intervals of the other steps
(log.retention.check.interval.ms and others). Concurrent runs are safe. Each step is also a job.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from stratalog import Report
from stratalog.jobs.arguments import add_every, check_options, count, number
from stratalog.jobs.declared import Special, add_declared, call
from stratalog.jobs.http_server import read_token
from stratalog.jobs.metrics import add_otlp, exposition, otlp_push
from stratalog.jobs.repeat import repeat
from stratalog.jobs.run import Job, JobMain, warn
from stratalog.partitions.errors import InvalidCallError, StorageError, StratalogError

if TYPE_CHECKING:
    from stratalog.engine.health.finding import HealthReport

_STEPS: Special = {
    "only": {"metavar": "STEP,STEP", "help": "run only these steps, due or not (with --every: when they are due)"},
    "exclude": {"metavar": "STEP,STEP"},
    "budget_requests": {"type": count},
}

_PAGE = {
    "--page-token-file": "file with the token that readers of the page must present",
    "--page-tls-cert": "PEM file with the page's certificate, and with its key unless you give --page-tls-key",
    "--page-tls-key": "PEM file with the key of the certificate",
    "--page-tls-client-ca": "serve the page only to readers with a certificate signed by this CA",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, "jobs.Jobs.maintain", leave_out=["due"], special=_STEPS)
    add_every(parser)
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        type=_address,
        help="with --every: check health after each run, and serve the metrics to Prometheus (default host: "
        "127.0.0.1)",
    )
    add_otlp(parser, "with --every: check health after each run, and push the metrics by OTLP to this address")
    parser.add_argument(
        "--page",
        metavar="[HOST:]PORT",
        help="with --every: serve the page of the cluster, updated after each run (default host: 127.0.0.1)",
    )
    for option, doc in _PAGE.items():
        parser.add_argument(option, metavar="FILE", help=doc)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host or "127.0.0.1", number(port)


def maintain(job: Job) -> Report:
    given = job.arguments
    page_options = ("page_token_file", "page_tls_cert", "page_tls_key", "page_tls_client_ca")
    check_options(
        given,
        needs=[
            ("metrics", "every"),
            ("otlp", "every"),
            ("page", "every"),
            *((one, "page") for one in page_options),
        ],
    )

    def once() -> Report:
        return call(job.on_workers().maintain, given, due=given.every is not None)

    if given.every is None:
        return once()
    with ExitStack() as closed:
        show = _watched(job, closed) if given.metrics or given.otlp is not None or given.page else job.show_line
        return repeat("maintain", once, show, lambda _: given.every)


def _watched(job: Job, closed: ExitStack) -> Callable[[Report], None]:
    """Return a function that shows a run as usual, and then checks the cluster. The check is for the page, and for
    figures that are served or pushed with the operations of all drivers. ``closed`` stops the servers.

    Raises: InvalidCallError, EnvironmentUnusableError.
    """
    given, cluster = job.arguments, job.cluster()
    look: Callable[[], HealthReport] = cluster.health
    if given.page is not None:
        page = closed.enter_context(_served(job))
        look = page.look
        print(f"page: {page.url}", file=sys.stderr, flush=True)
    measured = given.metrics is not None or given.otlp is not None
    publish = _measured(job) if measured else None

    def show(report: Report) -> None:
        found = None
        try:
            found = look()
        except StratalogError as error:
            if given.page is not None:
                warn([f"the page could not read the cluster's state: {error}"])
        except Exception:  # an error of the page must not end the upkeep
            traceback.print_exc()
            warn(["the page could not read the cluster's state (see the traceback); maintain continues"])
        if given.page is not None and not page.is_running:
            warn([f"the page at {page.url} is no longer served: start maintain again"])
        if publish is not None:
            publish(report, found)
        else:
            job.show_line(report)

    return show


def _served(job: Job) -> Any:
    """Return the running page. Raises: InvalidCallError."""
    given = job.arguments
    return job.cluster().serve_page(
        given.page,
        token=None if given.page_token_file is None else read_token(given.page_token_file),
        tls_cert=given.page_tls_cert,
        tls_key=given.page_tls_key,
        tls_client_ca=given.page_tls_client_ca,
        every_s=None,
    )


def _measured(job: Job) -> Callable[[Report, HealthReport | None], None]:
    """Return a function that shows a run as usual, and then serves or pushes the figures of the run, the health of
    the cluster, and the operations of all drivers.

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

    def publish(report: Report, found: HealthReport | None) -> None:
        shown.add(report)
        shown.look(found)
        with suppress(StratalogError):  # the next run also reports these events
            shown.count(new_events())
        job.show_line(report)
        if push is not None:
            try:
                push.push()
            except StorageError as error:  # if the receiver is unreachable, the next run pushes all figures again
                warn([str(error)])

    return publish


main = JobMain("maintain", __doc__, arguments, maintain)


if __name__ == "__main__":
    sys.exit(main())
