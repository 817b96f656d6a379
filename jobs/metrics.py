"""Print all figures of health in OpenMetrics format, with Kafka's names where Kafka has them. Changes nothing.

  stratalog metrics                              to standard output
  stratalog metrics --textfile DIR/stratalog.prom    to a file, for node_exporter's textfile collector; from cron
  stratalog metrics --otlp http://collector:4318/v1/metrics    pushed to an OpenTelemetry receiver over HTTP;
                                                 without an address, OTEL_EXPORTER_OTLP_* apply
  stratalog maintain --every 30s --metrics 9409      served to Prometheus, with counters per step of maintain

The job costs as much as health. If the cluster cannot be opened, stratalog_up is 0 and the exit status is 1. Needs
prometheus-client: pip install 'stratalog[metrics]'; OTLP needs OpenTelemetry: pip install
'stratalog[metrics,otlp]'.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog import Failure, Report
from stratalog.engine.config.cluster_file import load_cluster_file
from stratalog.engine.health.finding import unopened
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import (
    EnvironmentUnusableError,
    MetadataLostError,
    RetriableError,
    StorageError,
    StratalogError,
)

if TYPE_CHECKING:
    from stratalog.jobs.exposition import Exposition
    from stratalog.jobs.otlp import OtlpPush


def exposition(cluster_id: str) -> Exposition:
    """Return a new exposition of a cluster. Raises: EnvironmentUnusableError without prometheus-client."""
    try:
        from stratalog.jobs.exposition import Exposition
    except ModuleNotFoundError as error:
        raise EnvironmentUnusableError(
            f"metrics need {error.name}, which is not installed: pip install 'stratalog[metrics]'"
        ) from error
    return Exposition(cluster_id)


def otlp_push(shown: Exposition, endpoint: str) -> OtlpPush:
    """Return a function that pushes ``shown`` to ``endpoint``. If ``endpoint`` is "", the environment names it.
    Raises: EnvironmentUnusableError without OpenTelemetry.
    """
    try:
        from stratalog.jobs.otlp import OtlpPush
    except ModuleNotFoundError as error:
        raise EnvironmentUnusableError(
            f"OTLP needs {error.name}, which is not installed: pip install 'stratalog[metrics,otlp]'"
        ) from error
    return OtlpPush(shown, SystemClock(), endpoint or None)


def add_otlp(parser: argparse.ArgumentParser, doc: str) -> None:
    """``--otlp [URL]``."""
    parser.add_argument("--otlp", metavar="URL", nargs="?", const="", help=doc)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--textfile", metavar="FILE", help="write the metrics to this file, and print a report instead"
    )
    add_otlp(parser, "push the metrics to this address (default: from OTEL_EXPORTER_OTLP_*), and print a report")


def metrics(job: Job) -> Report:
    given = job.arguments
    shown = exposition(load_cluster_file(given.cluster, given.credentials).cluster_id)
    push = None if given.otlp is None else otlp_push(shown, given.otlp)
    failures: Sequence[Failure] = ()
    try:
        shown.look(job.cluster().health())
    except (RetriableError, MetadataLostError) as error:
        failures = unopened(given.cluster, error, SystemClock().now_ms()).failures
    except StratalogError:
        _publish(shown, given.textfile, push)
        raise
    _publish(shown, given.textfile, push)
    return Report("metrics", (), failures)


def _publish(shown: Exposition, textfile: str | None, push: OtlpPush | None) -> None:
    """Write, push or print the metrics; without a health check, stratalog_up is 0. The file comes first, because a
    receiver that is down must not leave an outdated file. Raises: StorageError."""
    if textfile is not None:
        try:
            shown.write(textfile)
        except OSError as error:
            raise StorageError(f"{textfile} cannot be written: {error.strerror}") from error
    if push is not None:
        push.push()
    if textfile is None and push is None:
        print(shown.text(), end="")


main = JobMain("metrics", __doc__, arguments, metrics, runs="driver", prints=True)


if __name__ == "__main__":
    sys.exit(main())
