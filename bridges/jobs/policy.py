"""Print the minimal storage policy of a role for the cluster. Changes nothing.

  stratalog policy --role reader --topics trips --for aws > reader.json
  stratalog policy --role producer --topics trips,fares --for aws > producer.json
  stratalog policy --role operator --for posix > operator.sh

A reader writes nothing. A producer deletes nothing. An operator runs the upkeep. Without --topics, the policy
covers all current and future topics; only an operator with such a policy can format, bootstrap and vacuum. aws: a
policy for a user or a role (for a bucket, add a Principal). azure: a role definition, and assignments with
conditions. gcs: bindings per bucket. posix: a shell script that sets access control lists for a group. A cluster
on several kinds of storage needs one policy for each. For details see SECURITY.md, "Rights".
"""

from __future__ import annotations

import argparse
import sys

from stratalog import Report
from stratalog.bridges.policy.role import SCHEMES, Role, kind_of
from stratalog.jobs.declared import add_declared, call
from stratalog.jobs.run import Job, JobMain


def arguments(parser: argparse.ArgumentParser) -> None:
    role = {"flags": ("--role",), "choices": [*map(str, Role)], "metavar": None, "required": True}
    storage = {"flags": ("--for",), "choices": [*SCHEMES], "type": _kind, "metavar": None, "required": True}
    add_declared(parser, "stratalog.bridges.rights:Rights.policy", special={"role": role, "storage": storage})


def _kind(text: str) -> str:
    if (kind := kind_of(text)) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is the scheme of an address: use {kind}")
    return text


def policy(job: Job) -> Report:
    print(call(job.cluster().policy, job.arguments), end="")
    return Report("policy", ())


main = JobMain("policy", __doc__, arguments, policy, runs="driver", prints=True)


if __name__ == "__main__":
    sys.exit(main())
