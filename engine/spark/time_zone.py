"""The time zone of a session. A time in text without a zone is in the session's zone, as in Spark's SQL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from pyspark.sql import SparkSession

from stratalog.engine.reading.positions import has_no_zone, time_of
from stratalog.partitions.errors import InvalidCallError

_SETTING = "spark.sql.session.timeZone"
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?", re.ASCII)
_TIMES = ("startingtimestamp", "endingtimestamp")
"""Options whose value is one time, in lowercase."""


def session_zone(spark: SparkSession) -> tzinfo:
    """The time zone of a session. Raises: InvalidCallError for a zone that only Java knows."""
    return zone_of(str(spark.conf.get(_SETTING)))


def zone_of(name: str) -> tzinfo:
    """The zone of a name in Spark's form: a region, or an offset from UTC.

    Raises: InvalidCallError for a name that Python does not know.
    """
    if name in {"Z", "UTC", "GMT", "UT"}:
        return UTC
    if (found := _OFFSET.fullmatch(name)) is not None:
        sign, hours, minutes, seconds = found.groups(default="0")
        offset = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
        return timezone(-offset if sign == "-" else offset)
    try:
        return ZoneInfo(name)
    # an unknown name, and a name that is not a path, raise different errors
    except (KeyError, ValueError, OSError):
        raise InvalidCallError(
            f"{_SETTING} is {name!r}, which Python's zone database lacks: give times with their zone, such as "
            "2013-06-01T00:00:00Z"
        ) from None


def zoned_options(options: Mapping[str, str], spark: SparkSession) -> dict[str, str]:
    """Return options of the format, with the session's zone added to times without a zone. (Spark does not pass
    the session's zone to a Python source.) Raises: see ``session_zone``.
    """
    return {
        name: time_of(text.strip(), name, session_zone(spark)).isoformat()
        if name.lower() in _TIMES and has_no_zone(text.strip())
        else text
        for name, text in options.items()
    }
