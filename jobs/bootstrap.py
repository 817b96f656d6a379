"""Set up brokers that are new or have lost their storage: format and register their roots, and bring their
replicas into the ISR. The report lists per partition what was copied, and what was not copied because it is
tiered.

  stratalog bootstrap 2                          everything that broker 2 had before it lost its disk
  stratalog bootstrap 4 --add --topics trips     also put replicas of all partitions of a topic on broker 4
  stratalog bootstrap 4 --instead-of 2           move all replicas of broker 2 to broker 4; broker 2 keeps none

With follower.fetch.last.tiered.offset.enable = true (a config of the cluster), a replica of a tiered topic starts
at the earliest pending upload offset and copies nothing that is already remote (KIP-1023). If the leader still
holds the log from its start, this also needs follower.fetch.last.tiered.offset.always.enable = true.

A root that was moved to another disk, or restored from a copy, also counts as lost: stratalog cannot tell a
faithful copy from an older one. If you are certain, use --trust-copy. (Move a root while its broker is fenced: see
fence.)
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.jobs.arguments import add_dry_run, add_topics, add_yes, number, numbers
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    add_dry_run(parser)
    add_yes(parser)
    parser.add_argument(
        "brokers",
        metavar="BROKERS",
        type=numbers,
        help="the brokers to set up: 2, or 2,3; an empty folder alone may be a volume that is not mounted",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="give these brokers replicas of all partitions of --topics that they lack",
    )
    parser.add_argument(
        "--instead-of",
        metavar="N",
        type=number,
        help="give the one broker of BROKERS all replicas of broker N, which loses them",
    )
    parser.add_argument(
        "--trust-copy",
        action="store_true",
        help="assert that these roots hold everything ever acknowledged to them: they were "
        "moved as they were, not restored from an older copy; acknowledged records are lost if this is wrong",
    )


def bootstrap(job: Job) -> Report:
    given = job.arguments
    if given.trust_copy:
        job.confirm(f"trust the roots of brokers {', '.join(map(str, given.brokers))} as they are")
    return job.on_workers().bootstrap(
        given.brokers,
        given.topics,
        add=given.add,
        instead_of=given.instead_of,
        trust_copy=given.trust_copy,
        dry_run=given.dry_run,
        check=False,
    )


main = JobMain("bootstrap", __doc__, arguments, bootstrap)


if __name__ == "__main__":
    sys.exit(main())
