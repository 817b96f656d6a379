"""The job of ``Cluster.heal``."""

import sys

from stratalog.jobs.declared import operation_job

main = operation_job("heal")


if __name__ == "__main__":
    sys.exit(main())
