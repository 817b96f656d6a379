"""The job of ``Cluster.compact``."""

import sys

from stratalog.jobs.declared import operation_job

main = operation_job("compact")


if __name__ == "__main__":
    sys.exit(main())
