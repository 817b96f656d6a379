"""Bridges: optional parts that add methods of ``Cluster``, jobs, and formats of ``tail``.

The core imports no bridge. It finds a bridge by name when the bridge is used:

    SHIPPED         this project's bridges, by name, so that the error for a missing bridge says how to install it
    entry points    other bridges: an entry point of the group ``stratalog.bridges`` is a ``Bridge``

A bridge uses the public API of the cluster: its methods become methods of ``Cluster``, like ``fetch``, ``read``
and ``append_batches``. docs/bridges.md has a complete bridge of 60 lines.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from stratalog.partitions.errors import EnvironmentUnusableError
from stratalog.partitions.printable import printable

GROUP = "stratalog.bridges"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BridgeJob:
    """A job of a bridge: ``main`` of its module is a ``JobMain``."""

    module: str
    help: str
    """The job's line in ``stratalog --help``."""
    group: str = "of other bridges"
    """The heading of that line."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """The methods, jobs and formats that a bridge adds."""

    name: str
    install: str
    """The command that installs the bridge."""
    home: str = ""
    """``module:Class``, whose public methods become methods of ``Cluster``."""
    methods: Sequence[str] = ()
    """The names of the bridge's methods."""
    jobs: Mapping[str, BridgeJob] = field(default_factory=dict)
    """The jobs, by command name."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """Formats of ``tail``, each as ``module:function``. This function takes a schema file, and returns a function
    that decodes the bytes of a value."""

    def load(self, place: str) -> Any:
        """Return the object at ``module:name``. Raises: EnvironmentUnusableError if the bridge is not
        installed."""
        module, _, name = place.partition(":")
        try:
            if importlib.util.find_spec(module) is None:
                raise self.missing()
        except ModuleNotFoundError as error:
            raise self.missing() from error
        return getattr(importlib.import_module(module), name)  # noqa: TID251 - a module of an installed distribution

    def missing(self) -> EnvironmentUnusableError:
        """Return the error for a bridge that is not installed."""
        return EnvironmentUnusableError(f"the bridge {self.name!r} is not installed: {self.install}")

    def broken(self, error: Exception) -> EnvironmentUnusableError:
        """Return the error of a bridge whose code cannot be loaded."""
        return EnvironmentUnusableError(_cannot_be_loaded(repr(self.name), error))


def _job(name: str, group: str, text: str) -> BridgeJob:
    return BridgeJob(f"stratalog.bridges.jobs.{name}", text, group)


SHIPPED = (
    Bridge(
        "kafka",
        "pip install 'stratalog[kafka,serve]'",
        "stratalog.bridges.kafka:Kafka",
        ("mirror", "end_mirror", "compare", "read_live", "for_each_live_batch", "export", "serve"),
        {
            "mirror": _job(
                "mirror",
                "Kafka",
                "copy topics of a Kafka cluster at the same offsets; --end opens them to producers",
            ),
            "compare": _job(
                "compare",
                "Kafka",
                "compare mirrored topics with their source in a Kafka cluster, record by record",
            ),
            "export": _job(
                "export", "Kafka", "copy topics, or ranges of topics, to a Kafka cluster, each record exactly once"
            ),
            "serve": _job("serve", "Kafka", "serve topics, read-only, to Kafka clients"),
        },
    ),
    Bridge(
        "kafka_tier",
        "pip install 'stratalog[kafka-tier,kafka]'",
        jobs={
            "kafka_tier": _job(
                "kafka_tier",
                "Kafka",
                "read the tiered storage of a Kafka cluster from its bucket, without brokers",
            )
        },
    ),
    Bridge(
        "formats",
        "pip install 'stratalog[avro]'",
        formats={
            "avro": "stratalog.bridges.formats.shown:avro",
            "confluent-avro": "stratalog.bridges.formats.shown:confluent_avro",
        },
    ),
    Bridge(
        "page",
        "pip install stratalog",
        "stratalog.bridges.state:StatePages",
        ("report", "serve_page"),
        {
            "report": _job(
                "report",
                "state of the cluster",
                "write one HTML page about the cluster, to a file or a bucket",
            )
        },
    ),
    Bridge(
        "policy",
        "pip install stratalog",
        "stratalog.bridges.rights:Rights",
        ("policy",),
        {
            "policy": _job(
                "policy",
                "brokers and clusters",
                "print the minimum storage permissions of a reader, producer or operator",
            )
        },
    ),
)


@cache
def bridges() -> tuple[Bridge, ...]:
    """Return the bridges of this project, and other installed bridges. A warning names each bridge that cannot be
    loaded.
    """
    found = list(SHIPPED)
    for point in entry_points(group=GROUP):
        try:
            offered = point.load()
        except Exception as error:  # foreign code may raise anything
            warn(_cannot_be_loaded(point.name, error))
            continue
        if isinstance(offered, Bridge):
            found.append(offered)
        else:
            warn(f"the bridge {point.name} is a {type(offered).__name__}, not a Bridge")
    return tuple(found)


def warn(of: object) -> None:
    """Log why a bridge, or a part of a bridge, is left out."""
    _log.warning("%s", printable(str(of)))


def _cannot_be_loaded(name: str, error: Exception) -> str:
    return f"the bridge {name} cannot be loaded: {type(error).__name__}: {error}"
