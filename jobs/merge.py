"""The job of ``Cluster.merge``."""

import sys

from stratalog.jobs.declared import operation_job

main = operation_job("merge")


if __name__ == "__main__":
    sys.exit(main())
