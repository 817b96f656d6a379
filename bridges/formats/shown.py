"""Formats of ``tail``: each takes a schema file and returns a function that decodes the bytes of a value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratalog.bridges.formats.avro import AvroValues


def avro(schema: Path) -> Callable[[bytes], Any]:
    """Decodes Avro values. Raises: InvalidCallError; EnvironmentUnusableError without fastavro. The function
    raises ValueError.
    """
    return AvroValues(schema, framed=False).decode


def confluent_avro(schema: Path) -> Callable[[bytes], Any]:
    """Like ``avro``, with the id of a schema before each value."""
    return AvroValues(schema, framed=True).decode
