"""The cost of an operation on one partition is independent of the number of its files: calls of the store, opened
files, stats of files, scans of folders. (A scan still reads the name of each file.)

Long logs are written directly as files: sealed segments, of which only the last is ever opened.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.partitions.clock import SystemClock
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName, WatermarkName
from stratalog.partitions.records import physical_schema
from stratalog.partitions.segments.writer import SegmentWriter
from stratalog.partitions.store import local as local_module
from stratalog.partitions.store import local_behind, local_listing, local_scan
from tests.depth import at_depth
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch
from tests.unit.stream_harness import Query

SIZES = (10, at_depth(test=1_000, nightly=10_000))


class Counts:
    """The requests of the process to the file system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: dict[str, int] = {}
        for module, name in ((os, "open"), (os, "scandir"), (os, "stat"), (os, "link"), (os, "fsync")):
            self._count(monkeypatch, module, name, name)
        self._count(monkeypatch, local_scan, "seen_as", "asked")
        self._count(monkeypatch, local_listing, "seen_as", "asked")

    def _count(self, monkeypatch: pytest.MonkeyPatch, module: object, name: str, what: str) -> None:
        call = getattr(module, name)

        def counted(*args: object, **kwargs: object) -> object:
            self.calls[what] = self.calls.get(what, 0) + 1
            return call(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    def of(self, work: Callable[[], object]) -> dict[str, int]:
        """The calls of a piece of work."""
        self.calls.clear()
        work()
        return dict(self.calls)


def segment(topic_id: str, start: int, epoch: int) -> bytes:
    """A segment of one record."""
    sink = io.BytesIO()
    writer = SegmentWriter(sink, physical_schema(), topic_id=topic_id, partition=0, base_offset=start)
    writer.write(batch([str(start)]))
    writer.close(lineage=Lineage([(epoch, 0)]), producers=lambda _: {}, created_ms=SystemClock().now_ms())
    return sink.getvalue()


def laid_out(folder: Path, segments: int) -> tuple[LiveCluster, int]:
    """A partition of this number of segments of one record, on three replicas; and its end."""
    folder.mkdir()
    live = LiveCluster(folder, on_disk=True)
    live.topic()
    live.fill("a")
    [view] = live.cluster.image.views("t")
    last = segment(view.topic_id, segments, view.leader_epoch)
    for broker in view.replicas:
        replica = live.root(broker) / live.replica(broker).folder
        first = replica / str(DataName(1, 2, view.leader_epoch))
        first.write_bytes(last)
        for start in range(2, segments):
            os.link(first, replica / str(DataName(start, start + 1, view.leader_epoch)))
        (replica / str(DataName(segments, segments + 1, view.leader_epoch))).write_bytes(last)
        (replica / str(WatermarkName(segments + 1, view.leader_epoch))).touch()
    live.cluster = live.driver()
    return live, segments + 1


@pytest.fixture(params=["with stamps", "without stamps"], autouse=True)
def stamps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A file system whose folders have a change time, always long ago; or a file system whose folders
    have none.
    """
    counted = request.param == "with stamps"
    for module in (local_listing, local_behind):
        monkeypatch.setattr(module, "stamps_count", lambda device: counted)
    monkeypatch.setattr(local_listing, "SETTLED_NS", -(10**15))
    assert local_module._CLOCK.now_ms() > 0
    return counted


@pytest.mark.slow
def test_the_cost_of_reads_and_of_idle_work_does_not_grow_with_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, list[dict[str, int]]] = {}
    for size in SIZES:
        live, end = laid_out(tmp_path / str(size), size)
        query = Query(live)
        query.begin()
        query.done = query.source.latest(query.begin(), None, None)
        idle = query.done
        works: dict[str, Callable[[], object]] = {
            "fetch": lambda: live.cluster.fetch("t", 0, end - 1),  # noqa: B023 - called at once
            "tail poll": lambda: live.cluster.fetch("t", 0, end),  # noqa: B023
            "empty trigger": lambda: query.source.latest(idle, None, None),  # noqa: B023
            "plan": lambda: live.cluster.plan_read("t", last=1),  # noqa: B023
            "offsets": lambda: live.cluster.offsets("t", "latest"),  # noqa: B023
            "idle sync": lambda: live.cluster.replicate().raise_for_failures(),  # noqa: B023
        }
        for what, work in works.items():
            work()
            with pytest.MonkeyPatch.context() as patches:
                found.setdefault(what, []).append(Counts(patches).of(work))
    for what, counts in found.items():
        assert counts[0]["open"] > 0
        assert counts == [counts[0]] * len(SIZES), what


@pytest.mark.slow
def test_the_cost_of_an_append_does_not_grow_with_the_log(tmp_path: Path, stamps: bool) -> None:
    """An append checks only its own file, after the write. If the kernel does not report the changes of the
    leader's folder, an append scans the folder twice.
    """
    found = []
    for size in SIZES:
        live, _ = laid_out(tmp_path / str(size), size)
        live.append(["a"]).raise_for_failures()
        with pytest.MonkeyPatch.context() as patches:
            work = lambda: live.append(["b"]).raise_for_failures()  # noqa: E731, B023
            found.append(Counts(patches).of(work))
    assert found == [found[0]] * len(SIZES)
    of_metadata = 4  # two reads of its voter's log
    assert found[0]["scandir"] == of_metadata + (0 if stamps else 2)


@pytest.mark.slow
def test_a_poll_behind_an_append_asks_about_what_is_new_alone(tmp_path: Path) -> None:
    found = []
    for size in SIZES:
        live, end = laid_out(tmp_path / str(size), size)
        reader = live.driver()
        reader.fetch("t", 0, end)
        live.append(["a"]).raise_for_failures()
        with pytest.MonkeyPatch.context() as patches:
            found.append(Counts(patches).of(lambda: reader.fetch("t", 0, end)))  # noqa: B023
    assert found == [found[0]] * len(SIZES)
    assert found[0]["asked"] < 10
