"""A replicated, tiered log on storage alone. This package is the public entry point of the product, and contains
all its other packages.

    from stratalog import Cluster
    cluster = Cluster.open("cluster.toml", spark)
    cluster.append("flights", df, key="tailnum", timestamp="time_hour", producer="loader", sequence=7)
    cluster.read("flights", start=1000).where("value.carrier = 'UA'")

One name
    A project that installs this package may have its own ``jobs/`` or ``engine/``, so ``stratalog`` is the only
    top-level name of the package. In the repository the packages are side by side, and two maps place them below
    that name. ``setup.py`` maps folders to packages of a wheel or an sdist, which therefore need no links. The
    symbolic links in this folder make the checkout itself importable: on ``PYTHONPATH``, as an editable install,
    for Python before any install, type checkers and editors. An editable install puts the path of the checkout
    into the environment, because type checkers would find no types through an import hook. A checkout without its
    links cannot be imported, or installed as editable, but it can build wheels.

    No package can be imported by the name of its folder, because a module under two names would be loaded twice,
    with two copies of each class.

The errors to catch are in ``stratalog.errors``. Modules are loaded on first use: ``import stratalog`` needs only
the standard library.
"""

from importlib.util import find_spec as _find_spec
from os.path import dirname as _dirname
from typing import TYPE_CHECKING

if _find_spec(f"{__name__}.engine") is None:
    _root = _dirname(_dirname(__file__))
    raise ImportError(
        f"stratalog cannot be imported from {_root}, because its symbolic links are missing: run `pip install "
        f"{_root}` and start Python in another folder, or clone again with `git clone -c core.symlinks=true`"
    )

if TYPE_CHECKING:
    from stratalog.bridges.kafka import Kafka as _Kafka
    from stratalog.bridges.kafka_tier.options import KafkaTierOptions as KafkaTierOptions
    from stratalog.bridges.kafka_tier.tier import KafkaTier as KafkaTier
    from stratalog.bridges.rights import Rights as _Rights
    from stratalog.bridges.state import StatePages as _State
    from stratalog.engine.cluster import Cluster as _Core
    from stratalog.engine.cluster.client import register_format as register_format
    from stratalog.engine.config.cluster_file import ClusterFile as ClusterFile
    from stratalog.engine.config.cluster_file import load_cluster_file as load_cluster_file
    from stratalog.engine.driver.report import Failure as Failure
    from stratalog.engine.driver.report import OperationFailedError as OperationFailedError
    from stratalog.engine.driver.report import Report as Report
    from stratalog.engine.reading.bounds import Committed as Committed
    from stratalog.engine.reading.positions import FirstAt as FirstAt
    from stratalog.engine.state.group_commits import OffsetAndMetadata as OffsetAndMetadata
    from stratalog.jobs.session import spark_session as spark_session
    from stratalog.partitions import version as _version
    from stratalog.partitions.errors import StratalogError as StratalogError
    from stratalog.partitions.offsets import FoundOffset as FoundOffset
    from stratalog.partitions.offsets import OffsetSpec as OffsetSpec
    from stratalog.partitions.offsets import UnknownOffset as UnknownOffset

    __version__ = _version.VERSION

    class Cluster(_Core, _Kafka, _State, _Rights):
        """The cluster with its bridges, for type checkers (``stratalog.engine.cluster.with_bridges``)."""

else:
    _HOMES = {
        "Cluster": "engine.cluster.with_bridges",
        "ClusterFile": "engine.config.cluster_file",
        "Committed": "engine.reading.bounds",
        "Failure": "engine.driver.report",
        "FirstAt": "engine.reading.positions",
        "FoundOffset": "partitions.offsets",
        "KafkaTier": "bridges.kafka_tier.tier",
        "KafkaTierOptions": "bridges.kafka_tier.options",
        "OffsetAndMetadata": "engine.state.group_commits",
        "OffsetSpec": "partitions.offsets",
        "OperationFailedError": "engine.driver.report",
        "Report": "engine.driver.report",
        "StratalogError": "partitions.errors",
        "UnknownOffset": "partitions.offsets",
        "__version__": "partitions.version",
        "load_cluster_file": "engine.config.cluster_file",
        "register_format": "engine.cluster.client",
        "spark_session": "jobs.session",
    }
    __all__ = [name for name in _HOMES if not name.startswith("_")]

    def __getattr__(name):
        """Return a public name of this package. It is loaded on first use (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: TID251 - one of _HOMES

        module = import_module(f"{__name__}.{_HOMES[name]}")
        value = getattr(module, "VERSION" if name == "__version__" else name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted(_HOMES)
