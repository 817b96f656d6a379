"""Every storage call of every operation fails once, and the next run continues (protocol, I7).

"A full disk or a failed upload: the step fails, the next run goes on from there, nothing is lost and no half file
is visible." A scenario goes through the life of a log, step by step. Before each step the cluster is copied; on
copies of it the step's first, second, ... mutating call fails, in each of three ways, and the step is run again.
With any fault, the outcome equals that of the step without a fault.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.partitions.clock import Clock, ManualClock
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    OutcomeUnknownError,
    StaleBrokerError,
    StorageError,
    StratalogError,
)
from stratalog.partitions.listing import parse
from stratalog.partitions.paths import BROKER_FILE
from stratalog.partitions.segments.reader import read_segment
from stratalog.partitions.store import Store, StoreOptions
from stratalog.partitions.store.memory import MemoryStore
from tests.clocks import FolderByClock
from tests.depth import at_depth
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import CHANGES, Faults


@pytest.fixture(autouse=True)
def merges_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``tier`` write segments from few files, without a merge."""
    monkeypatch.setattr("stratalog.partitions.rewrites.merge.FEW", 1)


class Fault(Enum):
    """The way in which the n-th change fails."""

    REFUSED = "once, without any effect"
    UNKNOWN = "once, with its effect, and without an answer"
    FULL = "and so do all that come after it: the disk is full, or the driver is dead"


Step = Callable[[LiveCluster], object]


def _append(name: str, sequence: int, acks: str = "all") -> Step:
    def step(live: LiveCluster) -> object:
        return live.append([f"{name}{sequence}"], producer=name, sequence=sequence, acks=acks)

    return step


def _create(live: LiveCluster) -> object:
    if "t" not in live.cluster.image.topic_ids:
        live.tiered(copies=2, segment_bytes="6000", segment_merge_min_files="2", local_retention_bytes="2000")
    return live


STEPS: dict[str, Step] = {
    "create the topic": _create,
    "append": _append("p", 0),
    "append to a log": _append("p", 1),
    "append for others": _append("q", 0, acks="leader"),
    "replicate": lambda live: live.cluster.replicate(check=False),
    "append once more": _append("p", 2),
    "tier appends as one segment": lambda live: live.cluster.tier(check=False),
    "merge": lambda live: live.cluster.merge(check=False),
    "replicate what was merged": lambda live: live.cluster.replicate(check=False),
    "local retention": lambda live: live.cluster.retain(check=False),
    "deletion": lambda live: live.cluster.retain(check=False),
    "append after retention": _append("p", 3),
    "bootstrap of a lost broker": lambda live: live.cluster.bootstrap(2, check=False),
    "seal": lambda live: live.cluster.topics.alter_configs("t", {"segment.bytes": "1"}),
    "tier segments as they are": lambda live: live.cluster.tier(check=False),
    "limit the log": lambda live: live.cluster.topics.alter_configs("t", {"retention.bytes": "4000"}),
    "total retention": lambda live: live.cluster.retain(check=False),
    "deletion of that": lambda live: live.cluster.retain(check=False),
    "append at last": _append("q", 1),
}
RECORDS = ["p0", "p1", "q0", "p2", "p3", "q1"]
"""The final log."""
LOSES_ITS_DISK = {"bootstrap of a lost broker": 2}
"""Events just before a step."""


@dataclass(frozen=True)
class Saved:
    """All files of a cluster at rest."""

    roots: dict[str, dict[str, bytes]]
    remote: Path
    now_ms: int


def _save(live: LiveCluster, folder: Path) -> Saved:
    roots = {
        store.uri: {stored.name: store.read(stored.name) for stored in store.list("")}
        for store in live.cluster.stores.values()
    }
    shutil.copytree(live.remote, folder)
    return Saved(roots, folder, live.clock.now_ms())


class Copy(LiveCluster):
    """A copy of a cluster, on storage that can fail."""

    def __init__(self, saved: Saved, original: LiveCluster, folder: Path) -> None:
        self.faults = Faults()
        self.folder, self.file = folder, original.file
        self.remote = folder / "remote"
        shutil.copytree(saved.remote, self.remote)
        self.clock = ManualClock(saved.now_ms)
        self.new_id = original.new_id  # type: ignore[method-assign]
        self.stores_of = {uri: MemoryStore(uri, self.clock) for uri in saved.roots}
        for uri, files in saved.roots.items():
            for name, data in files.items():
                self.stores_of[uri].create(name, data)
        self.cluster = with_parts(Cluster, clock=self.clock, new_id=self.new_id, opener=self.open_root).open(
            self.file, keeps_short=False
        )
        there = [b for b, store in self.cluster.stores.items() if BROKER_FILE in saved.roots[store.uri]]
        self.cluster.brokers.register(there, trust_copy=True).raise_for_failures()

    def open_root(self, uri: str, options: StoreOptions, clock: Clock) -> Store:
        store: Store = self.stores_of[uri] if uri in self.stores_of else FolderByClock(str(self.remote), clock)
        return self.faults.wrap(uri, store)

    def fail(self, fault: Fault, nth: int) -> Callable[[], int]:
        """Let the ``nth`` change fail from now on; returns a counter of changes."""
        seen = 0

        def before(uri: str, what: str, name: str) -> None:
            nonlocal seen
            if what in CHANGES:
                seen += 1
                if (seen == nth and fault is Fault.REFUSED) or (seen >= nth and fault is Fault.FULL):
                    raise StorageError(f"{uri}: no space left for {name}")

        def after(uri: str, what: str, name: str) -> None:
            if what in CHANGES and seen == nth and fault is Fault.UNKNOWN and what != "stage":
                raise OutcomeUnknownError(f"{uri}: no answer about {name}")

        self.faults.before, self.faults.after = before, after
        return lambda: seen


def _run(step: Step, live: LiveCluster) -> bool:
    """Whether the step reports that all work is done."""
    try:
        outcome = step(live)
    except StratalogError:
        return False
    return bool(getattr(outcome, "ok", True))


def _seen(live: LiveCluster) -> object:
    """The parts that must not depend on faults: the records, the positions, the ISR; and everything must be
    intact."""
    live.cluster.verify().raise_for_failures()
    image = live.cluster.image
    if "t" not in image.topic_ids:
        return None
    (partition,) = image.topic("t").partitions
    return (
        live.read(),
        set(partition.isr),
        partition.adding,
        partition.log_start_offset,
        live.log(live.leader()).high_watermark,
    )


def _no_half_state(live: LiveCluster) -> None:
    """Check that every named file is intact, and that readers see a range of the log."""
    if "t" not in live.cluster.image.topic_ids:
        return
    replicas = live.replicas()
    for broker in replicas.view.replicas:
        replica = replicas.replica(broker)
        for file in parse(replica.folder, replica.store.list(replica.folder)).data:
            read_segment(replica.store, file)
    try:
        values = live.read().get(0, [])
    except (BrokerUnreachableError, StaleBrokerError):
        return  # the leader has lost its disk, and no other replica leads yet
    assert "".join(values) in "".join(RECORDS)


@pytest.mark.slow
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_whatever_call_fails_the_next_run_continues_and_nothing_is_lost(tmp_path: Path, fault: Fault) -> None:
    live = LiveCluster(tmp_path, brokers=2)
    failed = 0
    for number, (name, step) in enumerate(STEPS.items()):
        if name in LOSES_ITS_DISK:
            live.wipe(LOSES_ITS_DISK[name])
        saved = _save(live, tmp_path / f"saved-{number}")
        assert _run(step, live), name
        expected = _seen(live)
        for nth in itertools.count(1, at_depth(test=15, nightly=1)):
            copy = Copy(saved, live, tmp_path / f"copy-{number}-{nth}")
            changes = copy.fail(fault, nth)
            ok = _run(step, copy)
            copy.faults.none()
            if changes() < nth:
                assert nth > 1, f"{name} changes nothing"
                break
            what = f"{name}, change {nth}: {fault.value}"
            _no_half_state(copy)
            failed += not ok
            assert _run(step, copy), what
            assert _seen(copy) == expected, what
    assert failed > at_depth(test=2, nightly=30)
    assert (
        live.read(start=live.replicas().view.log_start_offset)[0]
        == RECORDS[live.replicas().view.log_start_offset :]
    )
