"""Every import of the product that the baselines need: if a module moves, only this file changes."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import stratalog as door
from stratalog import Cluster, StratalogError, engine, partitions, snapshots, spark_session, tiering
from stratalog.bridges.page.report import StatePage
from stratalog.engine.cluster.brokers import Brokers
from stratalog.engine.cluster.catalog import Catalog
from stratalog.engine.cluster.groups import Groups
from stratalog.engine.cluster.quorum import Quorum
from stratalog.engine.cluster.topics import Topics
from stratalog.engine.cluster.transactions import OpenTransaction, Transactions
from stratalog.engine.health.finding import HealthFinding, HealthReport
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.jobs.main import JOBS
from stratalog.jobs.main import main as stratalog
from stratalog.partitions.clock import Clock, ManualClock
from stratalog.partitions.store import Store, StoreOptions, open_store
from stratalog.partitions.store.memory import MemoryStore

__all__ = [
    "JOBS",
    "REFERENCE",
    "ROOT",
    "Brokers",
    "Catalog",
    "Clock",
    "Cluster",
    "ErasureReport",
    "Groups",
    "HealthFinding",
    "HealthReport",
    "ManualClock",
    "MemoryStore",
    "OpenTransaction",
    "Quorum",
    "StatePage",
    "Store",
    "StoreOptions",
    "StratalogError",
    "Topics",
    "Transactions",
    "door",
    "load_everything",
    "open_store",
    "spark_session",
    "stratalog",
]

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "conf" / "reference.toml"


def load_everything() -> None:
    """Import every module below the jobs, so that lazily loaded modules are included."""
    for package in (partitions, snapshots, tiering, engine):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
