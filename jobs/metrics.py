"""All figures of health in OpenMetrics, with Kafka's names where Kafka has them. Changes nothing.

  stratalog metrics                              to standard output
  stratalog metrics --textfile DIR/stratalog.prom    to a file, for node_exporter's textfile collector; from cron
  stratalog maintain --every 30s --metrics 9409      served to Prometheus, with counters of what each step has done

It costs what health costs. It needs prometheus-client: pip install 'stratalog[metrics]'.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from stratalog import Report
from stratalog.jobs.run import Job, JobMain
from stratalog.partitions.errors import EnvironmentUnusableError, StorageError

if TYPE_CHECKING:
    from stratalog.jobs.exposition import Exposition


def exposition(cluster_id: str) -> Exposition:
    """A new one. Raises: EnvironmentUnusableError."""
    try:
        from stratalog.jobs.exposition import Exposition
    except ModuleNotFoundError as error:
        raise EnvironmentUnusableError(
            f"metrics need {error.name}, which is not installed: pip install 'stratalog[metrics]'"
        ) from error
    return Exposition(cluster_id)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--textfile", metavar="FILE", help="write them here, and print the report in their place")


def metrics(job: Job) -> Report:
    cluster = job.cluster()
    shown = exposition(cluster.file.cluster_id)
    shown.look(cluster.health())
    if job.arguments.textfile is None:
        print(shown.text(), end="")
    else:
        try:
            shown.write(job.arguments.textfile)
        except OSError as error:
            raise StorageError(f"{job.arguments.textfile} cannot be written: {error.strerror}") from error
    return Report("metrics", ())


main = JobMain("metrics", __doc__, arguments, metrics, runs="driver", prints=True)


if __name__ == "__main__":
    sys.exit(main())
