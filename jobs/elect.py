"""Elect leaders: by default the preferred replicas of partitions that another replica leads, to spread the load
again.

--unclean elects, for each partition without a leader, the replica with the most records, even if the topic's
unclean.leader.election.enable is false. Acknowledged records that only lost storage had are then lost for good.
Look at the plan first (--dry-run), and bring that storage back if you can.
"""

import sys

from stratalog.jobs.declared import operation_job

_LOSES = "elect unclean leaders: acknowledged records that they lack will be lost"

main = operation_job("elect", __doc__, confirm=lambda given: _LOSES if given.unclean else None)


if __name__ == "__main__":
    sys.exit(main())
