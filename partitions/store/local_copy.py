"""Copies bytes between two open files, and computes their checksum.

The kernel could copy the bytes itself (``copy_file_range``), but would not return a checksum. So every byte passes
through a buffer of this process, which adds it to the checksum. One thread writes a buffer while another thread
reads the next buffer and computes its checksum. Buffers fit into a core's cache: larger buffers take twice the
processor time.
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

    The disk starts to write immediately, so the following fsync has little to wait for. If the source ends early,
    the copy ends early, too: the caller compares sizes.

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
    """Writes buffers to a file in sequence, from its start, in a separate thread."""

    def __init__(self, target: int) -> None:
        self.free: SimpleQueue[memoryview] = SimpleQueue()
        """The buffers that are free."""
        for _ in range(_BUFFERS):
            self.free.put(memoryview(bytearray(BUFFER_BYTES)))
        self.error: OSError | None = None
        """The error that stopped the writing."""
        self._target = target
        self._filled: SimpleQueue[tuple[memoryview, int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="write-behind")
        self._thread.start()

    def write(self, buffer: memoryview, size_bytes: int) -> None:
        """Queue the first bytes of a buffer; the buffer is free again after they are written."""
        self._filled.put((buffer, size_bytes))

    def end(self) -> None:
        """Wait until everything is written, or the writing has failed."""
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
    """Fill the buffer from byte ``start`` on. Returns the number of bytes read."""
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
    """Make Linux start to write dirty pages, without waiting."""
    if hasattr(os, "posix_fadvise") and size_bytes:
        os.posix_fadvise(target, start, size_bytes, os.POSIX_FADV_DONTNEED)
