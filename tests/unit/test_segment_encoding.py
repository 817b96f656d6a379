"""Row groups are encoded in a thread, so that what brings the records goes on meanwhile."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.segment_writer import SegmentWriter
from tests.unit.segments import BINARY, records

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

GROUP = 1_000_000
"""Bytes of a row group: one record of ``VALUE`` fills it, and more than what waits for the sink."""
VALUE = bytes(700_000)


class Sink(io.BytesIO):
    """Notes which threads write to it, and fails when it is full."""

    def __init__(self, room_bytes: int = 10**9) -> None:
        super().__init__()
        self.room_bytes = room_bytes
        self.threads: list[int] = []

    def write(self, data: ReadableBuffer, /) -> int:
        if self.threads[-1:] != [threading.get_ident()]:
            self.threads.append(threading.get_ident())
        if self.tell() + memoryview(data).nbytes > self.room_bytes:
            raise OSError(28, "no space left")
        return super().write(data)


def writer_to(sink: io.BytesIO) -> SegmentWriter:
    return SegmentWriter(
        sink, BINARY, topic_id="f" * 32, partition=0, base_offset=0, compression="none", row_group_bytes=GROUP
    )


def close(writer: SegmentWriter) -> None:
    writer.close(lineage=Lineage([(1, 0)]), producers=lambda _: {}, created_ms=1_000)


def written(row_groups: int) -> Sink:
    sink = Sink()
    writer = writer_to(sink)
    for number in range(row_groups):
        writer.write(records([number.to_bytes(4) + VALUE]))
    close(writer)
    return sink


def encoders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("encoder")]


def test_one_thread_encodes_all_row_groups_but_the_last_which_the_caller_encodes() -> None:
    encoder, last = written(4).threads
    assert encoder != last == threading.get_ident()
    assert not encoders(), "it has ended with the file"


def test_a_file_of_one_row_group_takes_no_thread() -> None:
    assert written(1).threads == [threading.get_ident()]


def test_the_row_groups_stand_in_the_order_of_the_records_and_give_the_same_bytes_each_time() -> None:
    one, two = written(8).getvalue(), written(8).getvalue()
    assert one == two
    file = pq.ParquetFile(io.BytesIO(one), page_checksum_verification=True)
    assert file.metadata.num_row_groups == 8
    table = file.read()
    assert table.column("offset").to_pylist() == list(range(8))
    assert [int.from_bytes(value[:4]) for value in table.column("value").to_pylist()] == list(range(8))


def test_an_error_of_the_thread_is_raised_by_the_next_call_that_waits_for_it() -> None:
    writer = writer_to(Sink(room_bytes=GROUP))
    for _ in range(3):  # the second row group is begun, and finds no room
        writer.write(records([VALUE]))
    with pytest.raises(OSError, match="no space left"):
        writer.write(records([VALUE]))
    writer.abort()
    assert not encoders()


def test_an_error_of_the_thread_is_raised_by_the_close() -> None:
    writer = writer_to(Sink(room_bytes=GROUP))
    for _ in range(3):
        writer.write(records([VALUE]))
    with pytest.raises(OSError, match="no space left"):
        close(writer)
    assert not encoders()


def test_an_abort_ends_the_thread_and_nothing_reaches_the_sink_any_more() -> None:
    encoding, go_on = threading.Event(), threading.Event()

    class Slow(Sink):
        def write(self, data: ReadableBuffer, /) -> int:
            if threading.current_thread().name.startswith("encoder"):
                encoding.set()
                assert go_on.wait(60)
            return super().write(data)

    sink = Slow()
    writer = writer_to(sink)
    writer.write(records([VALUE]))
    writer.write(records([VALUE]))
    assert encoding.wait(60)
    aborting = threading.Thread(target=writer.abort)
    aborting.start()
    while not writer._sink._dropped:
        aborting.join(0.001)
    assert aborting.is_alive(), "it waits for the thread, whose write the sink has not finished"
    go_on.set()
    aborting.join(60)
    assert not encoders()
    sink.close()  # as the one that has staged it does
