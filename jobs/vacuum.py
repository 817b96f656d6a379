"""The job of ``Cluster.vacuum``."""

import sys

from stratalog.jobs.declared import operation_job

main = operation_job("vacuum")


if __name__ == "__main__":
    sys.exit(main())
