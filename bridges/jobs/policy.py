"""Print the least policy of a role on the storage of the cluster. Changes nothing.

  stratalog policy --role reader --topics trips --for aws > reader.json
  stratalog policy --role producer --topics trips,fares --for aws > producer.json
  stratalog policy --role operator --for posix > operator.sh

A reader writes nothing, a producer deletes nothing, an operator runs the upkeep. Without --topics it is for all
topics, also those to come; only such an operator formats, bootstraps and vacuums. aws: a policy for a user or a
role (for a bucket add a Principal). azure: a role definition, and assignments with conditions. gcs: bindings by
bucket. posix: a shell script with access control lists for a group. Of a cluster on several kinds of storage each
has its own. SECURITY.md, "Rights", says more.
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.bridges.policy.role import SCHEMES, Role
from stratalog.jobs.arguments import add_topics
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=[*map(str, Role)], required=True)
    parser.add_argument("--for", dest="storage", choices=[*SCHEMES], required=True, help="the kind of storage")
    add_topics(parser)


def policy(job: Job) -> Report:
    given = job.arguments
    print(job.cluster().policy(given.role, given.topics, storage=given.storage), end="")
    return Report("policy", ())


main = JobMain("policy", __doc__, arguments, policy, runs="driver", prints=True)


if __name__ == "__main__":
    sys.exit(main())
