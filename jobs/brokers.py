"""List and add brokers, take them out of service, bring them back, or permanently remove them from the cluster.

  stratalog brokers list
  stratalog brokers add 4                format and register a broker that is new in the cluster file
  stratalog brokers fence 2,3 --dry-run  print the leader that each partition would get

A fenced broker leads no partition, and is in no ISR except as its last member. Nothing is written to its root
until brokers unfence brings the broker back. To decommission a broker, first move its replicas away with reassign.
To bring back a broker that lost its storage, use the job bootstrap.
"""

import argparse
import sys

from stratalog.jobs.declared import group_job


def _named(given: argparse.Namespace) -> str:
    return f"broker{'s' if len(given.brokers) > 1 else ''} {', '.join(map(str, given.brokers))}"


def _leaderless(given: argparse.Namespace) -> str | None:
    return f"fence {_named(given)}, even if that leaves partitions without a leader" if given.force else None


main = group_job(
    "brokers",
    __doc__,
    ("list", "add", "fence", "unfence", "decommission"),
    confirm={
        "fence": _leaderless,
        "decommission": lambda given: f"permanently remove {_named(given)} from the cluster",
    },
)


if __name__ == "__main__":
    sys.exit(main())
