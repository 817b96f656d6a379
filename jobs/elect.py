"""Elect leaders. By default, elect the preferred replica of each partition that another replica leads, to balance
the load again.

--unclean elects, for each partition without a leader, the replica with the most records, even if the topic's
unclean.leader.election.enable is false. Acknowledged records that exist only on lost storage are then lost
permanently. If you can, bring the lost storage back instead. Read the plan first (--dry-run).
"""

import sys

from stratalog.jobs.declared import operation_job

_LOSES = "elect unclean leaders: acknowledged records that the new leaders lack are lost"

main = operation_job("elect", __doc__, confirm=lambda given: _LOSES if given.unclean else None)


if __name__ == "__main__":
    sys.exit(main())
