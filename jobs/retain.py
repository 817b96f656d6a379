"""The job of ``Cluster.retain``."""

import sys

from stratalog.jobs.declared import operation_job

main = operation_job("retain")


if __name__ == "__main__":
    sys.exit(main())
