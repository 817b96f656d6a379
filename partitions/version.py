"""The version of this package, also in a checkout, and in a zip on an executor, where it is not installed."""

from __future__ import annotations

VERSION = "0.1.0"
