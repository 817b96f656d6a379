"""The tests, and test programs such as ``python -m tests.golden``."""

import os

# The history is off, because tests count the topics, files and requests of their own operations; the tests of the
# history switch it on.
os.environ.setdefault("STRATALOG_HISTORY", "off")
