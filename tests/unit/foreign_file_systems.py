"""File systems of fsspec as users bring them (``file_system`` of a storage table), correct and incorrect ones."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, ClassVar

from fsspec import AbstractFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem


class Honest(MemoryFileSystem):  # type: ignore[misc]
    """A correct file system in memory; fsspec's own first checks whether a name is taken, and then writes."""

    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    lock = threading.Lock()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with self.lock:
            if mode == "create" and self._strip_protocol(path) in self.store:
                raise FileExistsError(path)
            super().pipe_file(path, value)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Read without fsspec's file objects, which share one position per file."""
        found = self.store.get(self._strip_protocol(path))
        if found is None:
            raise FileNotFoundError(path)
        return bytes(found.getvalue()[start:end])

    def exists(self, path: str, **_: Any) -> bool:
        return self._strip_protocol(path) in self.store


class Hanging(Honest):
    """A read hangs until the test ends it."""

    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.end = threading.Event()
        self.began = 0

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        self.began += 1
        self.end.wait(60)
        return b"late"


class Overwriting(Honest):
    """Ignores the mode, like obstore's adapter for fsspec."""

    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        super().pipe_file(path, value)


class Looking(Honest):
    """Checks whether the name is taken, and then writes, like fsspec's default."""

    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        time.sleep(0.01)
        super().pipe_file(path, value)


class Losing(Honest):
    """Creates objects, and loses the answers to that number of creates."""

    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    to_lose: ClassVar[int] = 0

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        lost = Losing.to_lose > 0
        Losing.to_lose -= 1
        try:
            super().pipe_file(path, value, mode)
        finally:
            if lost:
                raise ConnectionResetError("no answer")


def losing(root: str, endpoint_url: str | None) -> AbstractFileSystem:
    return _in_memory(Losing, endpoint_url)


def honest(root: str, endpoint_url: str | None) -> AbstractFileSystem:
    return _in_memory(Honest, endpoint_url)


def overwriting(root: str, endpoint_url: str | None) -> AbstractFileSystem:
    return _in_memory(Overwriting, endpoint_url)


def looking(root: str, endpoint_url: str | None) -> AbstractFileSystem:
    return _in_memory(Looking, endpoint_url)


def deaf(root: str, endpoint_url: str | None) -> AbstractFileSystem:
    """Ignores its server option."""
    return Honest(skip_instance_cache=True, use_listings_cache=False)


def caching(root: str, endpoint_url: str | None) -> AbstractFileSystem:
    """Uses fsspec's default caches."""
    return Honest(skip_instance_cache=True)


def wrapping(root: str, endpoint_url: str | None) -> AbstractFileSystem:
    """Has no cache itself, but its inner file system has one."""
    inner = Honest(skip_instance_cache=True)
    return DirFileSystem("folder", inner, skip_instance_cache=True, use_listings_cache=False)


def s3fs_as_it_comes(root: str, endpoint_url: str | None) -> AbstractFileSystem:
    import s3fs

    return s3fs.S3FileSystem(endpoint_url=endpoint_url, skip_instance_cache=True, use_listings_cache=False)


def obstore_door(root: str, endpoint_url: str | None) -> AbstractFileSystem:
    from obstore.fsspec import FsspecStore

    fs = FsspecStore(
        "s3",
        endpoint=endpoint_url,
        region="us-east-1",
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        client_options={"allow_http": True},
        skip_instance_cache=True,
    )
    fs.dircache.use_listings_cache = False
    return fs


def _in_memory(kind: type[Honest], endpoint_url: str | None) -> AbstractFileSystem:
    if (endpoint_url or "").startswith("http://127.0.0.1"):
        raise NotImplementedError("no server")
    return kind(skip_instance_cache=True, use_listings_cache=False)
