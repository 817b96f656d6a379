"""The tests, and test programs such as ``python -m tests.golden``."""

import os

# Tests count the topics, files and requests of their own operations. The tests of the history switch it on.
os.environ.setdefault("STRATALOG_HISTORY", "off")
