"""Set up brokers that are new or have lost their storage: format and register their roots, and bring their
replicas into the ISR. For each partition, the report counts the copied records, and the records that were skipped
because they are tiered.

  stratalog bootstrap 2                          restore the replicas that broker 2 had before it lost its disk
  stratalog bootstrap 4 --add --topics trips     add replicas of all partitions of a topic on broker 4
  stratalog bootstrap 4 --instead-of 2           move all replicas of broker 2 to broker 4; broker 2 keeps none

With the cluster config follower.fetch.last.tiered.offset.enable = true, a replica of a tiered topic starts at the
earliest pending upload offset, and copies nothing that is already remote (KIP-1023). If the leader still has the
log from its start, this also needs follower.fetch.last.tiered.offset.always.enable = true.

A root that was moved to another disk, or restored from a copy, also counts as lost, because stratalog cannot
distinguish a complete copy from an older one. If you are certain that the copy is complete, use --trust-copy.
Fence a broker before you move its root (brokers fence).
"""

import argparse
import sys

from stratalog.jobs.declared import operation_job


def _asserts(given: argparse.Namespace) -> str | None:
    brokers = ", ".join(map(str, given.brokers))
    return f"trust the roots of brokers {brokers} as they are" if given.trust_copy else None


main = operation_job("bootstrap", __doc__, confirm=_asserts)


if __name__ == "__main__":
    sys.exit(main())
