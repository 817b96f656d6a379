"""The tests; also programs of their own, such as ``python -m tests.golden``."""

import os

# Tests count topics, files and requests of what they do. The history has tests of its own, which switch it on.
os.environ.setdefault("STRATALOG_HISTORY", "off")
