"""List transactions, describe a transaction, end abandoned transactions, and find transactions that hang in a log.

  stratalog transactions list
  stratalog transactions describe loader-1
  stratalog transactions finish
  stratalog transactions find-hanging --topics trips
  stratalog transactions abort loader-1

Every run of replicate includes finish: it aborts transactions that have timed out, and completes transactions
whose outcome is decided.
"""

import sys

from stratalog.jobs.declared import group_job

main = group_job("transactions", __doc__, ("list", "describe", "abort", "finish", "find_hanging"))


if __name__ == "__main__":
    sys.exit(main())
