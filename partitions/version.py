"""The version of this package. It is also available in a checkout, and in a zip on an executor, where the package
is not installed.
"""

from __future__ import annotations

VERSION = "0.1.0"
