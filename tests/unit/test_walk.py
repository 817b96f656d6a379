"""The path of a cluster's ports through one operation without faults: the modules that get the ports, and how
often the path returns to a module that it has left. Somebody who reads the operation opens the same modules in the
same order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import pytest

from stratalog import Cluster
from stratalog.engine.brokers.probe import probe_brokers
from stratalog.partitions.runner import SerialRunner
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("engine", "partitions", "snapshots", "tiering")
MOST_MODULES = 20
MOST_RETURNS = 29
"""The limits of every operation."""


def module_of(code: CodeType) -> str | None:
    """The file of the product that contains the code, relative to the checkout; None for other code."""
    file = Path(code.co_filename)
    path = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    path = path.relative_to("stratalog") if path.is_relative_to("stratalog") else path
    return str(path) if path.parts[0] in LAYERS else None


def walk(operation: Callable[[], object], passed: list[object]) -> list[str]:
    """The modules whose functions get one of the ``passed`` objects, in the order of the calls, without direct
    repetitions. A port's own methods do not count, because the port is used, not passed on."""
    modules: list[str] = []

    def called(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if event != "call" or (names[:1] == ("self",) and any(frame.f_locals["self"] is port for port in passed)):
            return
        if any(frame.f_locals.get(name) is port for name in names for port in passed):
            module = module_of(code)
            if module is not None and modules[-1:] != [module]:
                modules.append(module)

    sys.setprofile(called)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return modules


def append(cluster: Cluster) -> None:
    cluster.append_batches("t", {0: [batch(["c"])]})


OPERATIONS: dict[str, tuple[Callable[[Cluster], object], int, int]] = {
    "append": (append, 13, 10),
    "replicate": (lambda cluster: cluster.replicate(), 14, 12),
    "plan_read": (lambda cluster: cluster.plan_read("t"), 3, 5),
    "fetch": (lambda cluster: cluster.fetch("t", 0, 0), 3, 0),
    "tier": (lambda cluster: cluster.tier(), 15, 10),
    "retain": (lambda cluster: cluster.retain(), 10, 14),
    "verify": (lambda cluster: cluster.verify(), 10, 8),
    "heal": (lambda cluster: cluster.heal(), 12, 8),
    "health": (lambda cluster: cluster.health(), 16, 8),
}
"""Operations by name: the function, the number of modules on its walk, and the number of returns to one of
them."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_ports_of_an_operation_pass_few_modules_and_seldom_return(name: str, tmp_path: Path) -> None:
    operation, most_modules, most_returns = OPERATIONS[name]
    live = LiveCluster(tmp_path)
    live.tiered()
    live.fill("ab")
    live.append(["late"], acks="leader")
    ports = ports_of(live.cluster)
    ports.storage.threads = ports.storage.copies = SerialRunner()  # the walk traces only this thread
    passed = [ports.metadata, ports.storage, ports.execution, ports.memory, ports.clock]
    modules = walk(lambda: operation(live.cluster), passed)
    visited = len({*modules})
    assert visited <= most_modules <= MOST_MODULES, modules
    assert len(modules) - visited <= most_returns <= MOST_RETURNS, modules


def test_a_walk_counts_what_is_passed_on_and_not_who_is_asked(tmp_path: Path) -> None:
    ports = ports_of(LiveCluster(tmp_path).cluster)
    assert walk(ports.metadata.image, [ports.metadata]) == []
    assert walk(lambda: probe_brokers(ports.metadata, ports.storage), [ports.storage]) == [
        "engine/brokers/probe.py"
    ]
