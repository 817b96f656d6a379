"""The job of ``Cluster.replicate``."""

import sys

from stratalog.jobs.declared import operation_job

main = operation_job("replicate")


if __name__ == "__main__":
    sys.exit(main())
