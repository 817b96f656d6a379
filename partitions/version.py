"""The version of this package: also of a checkout, and of a zip on an executor, where nothing is installed."""

from __future__ import annotations

VERSION = "0.1.0"
