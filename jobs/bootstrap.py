"""Set up brokers that are new or have lost their storage: format and register their roots, and bring their
replicas into the ISR. The report lists for each partition the records that were copied, and those that were not
copied because they are tiered.

  stratalog bootstrap 2                          the replicas that broker 2 had before it lost its disk
  stratalog bootstrap 4 --add --topics trips     also put replicas of all partitions of a topic on broker 4
  stratalog bootstrap 4 --instead-of 2           move all replicas of broker 2 to broker 4; broker 2 keeps none

With follower.fetch.last.tiered.offset.enable = true (a config of the cluster), a replica of a tiered topic starts
at the earliest pending upload offset and copies nothing that is already remote (KIP-1023). If the leader still
holds the log from its start, this also needs follower.fetch.last.tiered.offset.always.enable = true.

A root that was moved to another disk, or restored from a copy, also counts as lost: stratalog cannot tell a
faithful copy from an older one. If you are certain, use --trust-copy. (Move a root while its broker is fenced: see
fence.)
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
