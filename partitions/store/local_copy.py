"""Copying bytes between two open files, and telling what was copied.

The kernel could copy by itself (``copy_file_range``), but nobody would know what. So every byte passes through a
buffer of this process, whose checksum is taken, and what is written is what is in that buffer. While one buffer is
written the next is read and summed up, in another thread.
"""

from __future__ import annotations

import os
import queue
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

BUFFER_BYTES = 4 * 1024 * 1024
_BUFFERS = 3


def copy_file(source: int, target: int, size_bytes: int) -> int:
    """Copy the first ``size_bytes`` of one open file to the start of another. Returns the CRC-32 of the bytes that
    were written.

    The disk starts to write what is copied at once, so that the fsync that follows finds little left to wait for.
    Stops early where the source ends early: the caller compares sizes.

    Raises: OSError.
    """
    if size_bytes <= BUFFER_BYTES:
        data = memoryview(bytearray(size_bytes))
        read = _read(source, data, 0)
        _write(target, data[:read], 0)
        return zlib.crc32(data[:read])
    with ThreadPoolExecutor(1, thread_name_prefix="write") as writer:
        free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for _ in range(_BUFFERS):
            free.put(memoryview(bytearray(BUFFER_BYTES)))

        def write(buffer: memoryview, read: int, start: int) -> None:
            try:
                _write(target, buffer[:read], start)
            finally:
                free.put(buffer)

        done = crc32 = 0
        writes: deque[Future[None]] = deque()
        while done < size_bytes:
            buffer = free.get()
            while writes and writes[0].done():
                writes.popleft().result()
            read = _read(source, buffer[: size_bytes - done], done)
            if read == 0:
                break
            crc32 = zlib.crc32(buffer[:read], crc32)
            writes.append(writer.submit(write, buffer, read, done))
            done += read
        for written in writes:
            written.result()
    return crc32


def _read(source: int, buffer: memoryview, start: int) -> int:
    """Fill the buffer from byte ``start`` on; how many bytes there were."""
    read = 0
    while read < len(buffer):
        count = os.preadv(source, [buffer[read:]], start + read)
        if count == 0:
            break
        read += count
    return read


def _write(target: int, data: memoryview, start: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(target, data[written:], start + written)
    # Linux starts to write pages that are advised away while dirty, and waits for nothing.
    if hasattr(os, "posix_fadvise") and written:
        os.posix_fadvise(target, start, written, os.POSIX_FADV_DONTNEED)
