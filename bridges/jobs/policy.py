"""Print the minimal storage policy of a role for the cluster. Changes nothing.

  stratalog policy --role reader --topics trips --for aws > reader.json
  stratalog policy --role producer --topics trips,fares --for aws > producer.json
  stratalog policy --role operator --for posix > operator.sh

A reader writes nothing, a producer deletes nothing, an operator runs the upkeep. Without --topics the policy
covers all topics, including future ones; only such an operator can format, bootstrap and vacuum. aws: a policy for
a user or a role (for a bucket, add a Principal). azure: a role definition, and assignments with conditions. gcs:
bindings per bucket. posix: a shell script that sets access control lists for a group. A cluster on several kinds
of storage needs one policy for each. For details see SECURITY.md, "Rights".
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
