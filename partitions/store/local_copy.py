"""Copying bytes between two open files, and telling what was copied.

The kernel could copy by itself (``copy_file_range``), but nobody would know what. So every byte passes through a
buffer of this process, whose checksum is taken and whose bytes are written. While one buffer is
written the next is read and summed up, in another thread. Buffers are small enough for a core's own cache: with
larger ones the same copy takes twice the processor time.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

from isal import isal_zlib

BUFFER_BYTES = 256 * 1024
_BUFFERS = 4
_WRITEBACK_BYTES = 16 * 1024 * 1024


def copy_file(source: int, target: int, size_bytes: int) -> int:
    """Copy the first ``size_bytes`` of one open file to the start of another. Returns the CRC-32 of the bytes that
    were written.

    The disk starts to write at once, so that the fsync that follows finds little left to wait for.
    Stops early where the source ends early: the caller compares sizes.

    Raises: OSError.
    """
    if size_bytes <= BUFFER_BYTES:
        data = memoryview(bytearray(size_bytes))
        data = data[: _read(source, data, 0)]
        _write(target, data, 0)
        return isal_zlib.crc32(data)
    behind = _WriterBehind(target)
    done = crc32 = 0
    try:
        while done < size_bytes and behind.error is None:
            buffer = behind.free.get()
            data = buffer[: _read(source, buffer[: size_bytes - done], done)]
            if not data:
                break
            crc32 = isal_zlib.crc32(data, crc32)
            behind.write(buffer, len(data))
            done += len(data)
    finally:
        behind.end()
    if behind.error is not None:
        raise behind.error
    return crc32


class _WriterBehind:
    """Writes buffers to a file one after the other, from its start on, in a thread of its own."""

    def __init__(self, target: int) -> None:
        self.free: SimpleQueue[memoryview] = SimpleQueue()
        """Buffers that may be filled."""
        for _ in range(_BUFFERS):
            self.free.put(memoryview(bytearray(BUFFER_BYTES)))
        self.error: OSError | None = None
        """Why nothing is written any more."""
        self._target = target
        self._filled: SimpleQueue[tuple[memoryview, int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="write-behind")
        self._thread.start()

    def write(self, buffer: memoryview, size_bytes: int) -> None:
        """The first bytes of a buffer are next; the buffer is free again when they are written."""
        self._filled.put((buffer, size_bytes))

    def end(self) -> None:
        """Wait until everything is written, or has failed."""
        self._filled.put(None)
        self._thread.join()

    def _run(self) -> None:
        done = started = 0
        while (item := self._filled.get()) is not None:
            buffer, size_bytes = item
            try:
                if self.error is None:
                    _write(self._target, buffer[:size_bytes], done)
                    done += size_bytes
                    if done - started >= _WRITEBACK_BYTES:
                        _start_writeback(self._target, started, done - started)
                        started = done
            except OSError as error:
                self.error = error
            self.free.put(buffer)
        if self.error is None:
            _start_writeback(self._target, started, done - started)


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


def _start_writeback(target: int, start: int, size_bytes: int) -> None:
    """Linux starts to write pages that are advised away while dirty, and waits for nothing."""
    if hasattr(os, "posix_fadvise") and size_bytes:
        os.posix_fadvise(target, start, size_bytes, os.POSIX_FADV_DONTNEED)
