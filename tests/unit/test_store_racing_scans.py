"""A constantly changing folder: a scan shows all files that existed throughout, and a listing has no hole.

This is the requirement of ``two_scans`` on a file system or a bucket: each available kind is tested.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import chain_of, parse, resolve
from stratalog.partitions.paths import DataName, EpochName, WatermarkName, base_name
from stratalog.partitions.store import Store, StoredObject, StoreOptions, open_store
from tests.depth import at_depth
from tests.s3_server import S3Endpoint

FOLDER = f"{'d' * 32}/topic-{'e' * 32}/0.1"
TMPFS = Path("/dev/shm")
SECONDS = at_depth(test=1, nightly=2)
MERGED = 20
"""Appends that are merged into a segment, and deleted later."""
DELAY_S = 0.3
"""The time between a merge and the deletion of its hidden files: longer than a listing takes."""

Create, Delete = Callable[[str], object], Callable[[Sequence[str]], object]


class Writer:
    """Appends one record at a time, as fast as possible; merges, and deletes merged files."""

    def __init__(self, create: Create, delete: Delete) -> None:
        self._create, self._delete = create, delete
        self.created_s: dict[str, float] = {}
        """The creation time of each name."""
        self.deleting_s: dict[str, float] = {}
        """The start of the deletion of each name."""
        self.end = 0
        self._merged: list[tuple[float, list[str]]] = []

    def append(self) -> None:
        self._made(DataName(self.end, None, 1))
        self.end += 1
        self._made(WatermarkName(self.end, 1))
        if self.end % MERGED == 0:
            self._made(DataName(self.end - MERGED, self.end, 1))
            names: list[object] = [DataName(base, None, 1) for base in range(self.end - MERGED, self.end)]
            names += [WatermarkName(offset, 1) for offset in range(self.end - MERGED + 1, self.end)]
            self._merged.append((time.monotonic(), [*map(str, names)]))
            while self._merged and self._merged[0][0] < time.monotonic() - DELAY_S:
                self._gone(self._merged.pop(0)[1])

    def _made(self, name: object) -> None:
        self._create(str(name))
        self.created_s[str(name)] = time.monotonic()

    def _gone(self, names: list[str]) -> None:
        now_s = time.monotonic()
        self.deleting_s.update(dict.fromkeys(names, now_s))
        self._delete(names)


@contextmanager
def racing(writer: Writer) -> Iterator[None]:
    """Run the writer during the block, with frequent switches of threads."""
    over, interval_s = threading.Event(), sys.getswitchinterval()

    def write() -> None:
        while not over.wait(0.0005):
            writer.append()

    sys.setswitchinterval(0.0002)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(write)
        try:
            yield
        finally:
            over.set()
            running.result()
            sys.setswitchinterval(interval_s)


def on_folders(root: Path) -> tuple[Store, Writer]:
    folder = root / FOLDER
    folder.mkdir(parents=True)

    def create(name: str) -> None:
        (folder / name).touch(exist_ok=False)

    def delete(names: Sequence[str]) -> None:
        for name in names:
            (folder / name).unlink()

    return open_store(root.as_uri()), Writer(create, delete)


@pytest.fixture(
    params=["disk", "tmpfs", pytest.param("s3", marks=(pytest.mark.s3, pytest.mark.long("fills pages")))]
)
def raced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Writer]]:
    """An empty folder on each store, with its writer; in a bucket it has more names than a page."""
    if request.param == "s3":
        endpoint: S3Endpoint = request.getfixturevalue("s3_endpoint")
        place = f"s3://{endpoint.bucket}/racing-{request.node.originalname}"
        store = open_store(place, StoreOptions(endpoint.url, endpoint.region))
        with ThreadPoolExecutor(16) as pool:
            names = [str(WatermarkName(offset, 0)) for offset in range(1, 1100)]
            assert all(pool.map(lambda name: store.create(f"{FOLDER}/{name}", b""), names))
        yield (
            store,
            Writer(
                lambda name: store.create(f"{FOLDER}/{name}", b""),
                lambda names: store.delete([f"{FOLDER}/{name}" for name in names]),
            ),
        )
    elif request.param == "disk":
        yield on_folders(tmp_path)
    else:
        if not TMPFS.is_dir():
            pytest.skip("no file system in memory here")
        folder = Path(tempfile.mkdtemp(prefix="stratalog-racing-", dir=TMPFS))
        yield on_folders(folder)
        shutil.rmtree(folder)


def missed(writer: Writer, seen: set[str], begun_s: float, ended_s: float) -> list[str]:
    """Names that existed throughout and were not seen."""
    return [
        name
        for name, at_s in writer.created_s.copy().items()
        if at_s < begun_s and writer.deleting_s.get(name, ended_s) >= ended_s and name not in seen
    ]


@pytest.mark.slow
def test_a_scan_shows_each_name_once_that_was_there_all_the_while(
    raced: tuple[Store, Writer], record_property: Callable[[str, object], None]
) -> None:
    store, writer = raced
    scans, until_s = 0, time.monotonic() + SECONDS
    with racing(writer):
        while time.monotonic() < until_s:
            begun_s = time.monotonic()
            seen = [base_name(one.name) for one in store.walk(FOLDER)]
            ended_s = time.monotonic()
            assert len(set(seen)) == len(seen)
            assert missed(writer, {*seen}, begun_s, ended_s) == []
            scans += 1
    record_property("a scan beside a writer", {"scans": scans, "names that came": len(writer.created_s)})


@pytest.mark.slow
def test_a_listing_has_no_hole(
    raced: tuple[Store, Writer], record_property: Callable[[str, object], None]
) -> None:
    store, writer = raced
    writer._made(EpochName(1))
    writer.append()
    known: Sequence[StoredObject] = ()
    listings, until_s = 0, time.monotonic() + SECONDS
    with racing(writer):
        for number in itertools.count():
            if (begun_s := time.monotonic()) > until_s:
                break
            end = writer.end
            if number % 2:
                known = found = store.list(FOLDER, known=known)
            else:
                found = store.list(FOLDER)
            assert missed(writer, {base_name(one.name) for one in found}, begun_s, time.monotonic()) == []
            log = resolve(parse(FOLDER, found), Lineage([(1, 0)]), lambda file: file.name.base_offset + 1)
            assert end <= log.log_end
            assert end - 1 <= log.high_watermark
            assert (log.stranded, log.lost_committed) == ((), False)
            assert all(link.name.merged or link.end == link.start + 1 for link in log.chain)
            assert store.names(FOLDER) >= {f"{FOLDER}/{EpochName(1)}"}
            last = DataName(end - 1, None, 1)
            behind = parse(FOLDER, store.list(FOLDER, after=str(last)))
            begin = min((file.name.base_offset for file in behind.data), default=end)
            chain = chain_of(behind.data, begin, lambda file: file.name.base_offset + 1)
            assert {file.name.least_end for file in behind.data} <= {
                *range(begin, chain[-1].end + 1 if chain else 0)
            }
            listings += 1
    record_property("a listing beside a writer", {"listings": listings, "names that came": len(writer.created_s)})
