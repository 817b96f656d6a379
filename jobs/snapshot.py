"""Take snapshots of topics with cleanup.policy=snapshot, including internal topics, and of the metadata log. Copy
the snapshots to the other replicas, and advance log starts. Default: all these topics, and the metadata log. In
--topics, the metadata log has the name __cluster_metadata.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_every
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.repeat import once_or_every
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_declared(parser, "jobs.Jobs.snapshot")
    add_every(parser)


def snapshot(job: Job) -> Report:
    given = job.arguments
    return once_or_every("snapshot", lambda: call(job.on_workers().snapshot, given), job.show, given.every)


main = JobMain("snapshot", __doc__, arguments, snapshot)


if __name__ == "__main__":
    sys.exit(main())
