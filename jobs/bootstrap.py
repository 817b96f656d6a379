"""Bring brokers up that are new or lost their storage: format and register their roots, bring their replicas into
the ISR. The report says per partition what was copied, and what was not because it is tiered.

  bootstrap --brokers 2                          all that broker 2 had, before it lost its disk
  bootstrap --brokers 4 --add --topics trips     replicas of all partitions of a topic on broker 4, too
  bootstrap --brokers 4 --instead-of 2           all replicas of broker 2 on broker 4; broker 2 then has nothing

With follower.fetch.last.tiered.offset.enable = true (on the cluster) a replica of a tiered topic starts at the
earliest pending upload offset, and copies nothing that is remote already (KIP-1023); where the leader still holds
the log from its start on, only with follower.fetch.last.tiered.offset.always.enable = true, too.

A root that was moved to another disk, or put back from a copy, counts as lost too: nobody can tell a faithful copy
from an older one. If you can, say so with --trust-copy. (Move a root while its broker is fenced: see fence.)
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
        "--brokers",
        metavar="N,M",
        type=numbers,
        required=True,
        help="these, by name: an empty folder may be a volume that is not mounted",
    )
    parser.add_argument(
        "--add", action="store_true", help="they get replicas of all partitions of --topics that they lack"
    )
    parser.add_argument(
        "--instead-of",
        metavar="N",
        type=number,
        help="the one broker gets the replicas of broker N, which loses them",
    )
    parser.add_argument(
        "--trust-copy",
        action="store_true",
        help="these roots hold everything that was ever acknowledged to them: moved as they were, not restored "
        "from an older copy; acknowledged records are lost if that is wrong",
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
