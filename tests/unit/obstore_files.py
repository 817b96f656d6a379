"""obstore (Rust's object_store) as a file system of fsspec that creates exclusively, by its own ``put``.

obstore's own adapter for fsspec ignores ``mode="create"`` (``test_file_systems``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import obstore
from fsspec import AbstractFileSystem
from obstore.exceptions import AlreadyExistsError, NotFoundError, PermissionDeniedError
from obstore.store import AzureStore, GCSStore, S3Store


class ObstoreFiles(AbstractFileSystem):  # type: ignore[misc]
    """The objects of one bucket."""

    def __init__(self, store: Any, **_: Any) -> None:
        super().__init__(skip_instance_cache=True, use_listings_cache=False)
        self._objects = store

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return _info(path, _translated(lambda: obstore.head(self._objects, _key(path))))

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
             ) -> dict[str, Any]:  # fmt: skip
        bucket, key = path.partition("/")[0], _key(path)
        pages = obstore.list(self._objects, prefix=key or None)
        found = _translated(lambda: [each for page in pages for each in page])
        return {name: _info(name, each) for each in found for name in [f"{bucket}/{each['path']}"]}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        if start is None or end is None:
            return bytes(_translated(lambda: obstore.get(self._objects, _key(path)).bytes()))
        return bytes(_translated(lambda: obstore.get_range(self._objects, _key(path), start=start, end=end)))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        _translated(lambda: obstore.put(self._objects, _key(path), value, mode=mode, use_multipart=False))  # type: ignore[arg-type]

    def rm_file(self, path: str) -> None:
        _translated(lambda: obstore.delete(self._objects, _key(path)))


def s3_files(root: str, endpoint_url: str | None) -> AbstractFileSystem:
    """The function for ``file_system`` of a storage table."""
    return ObstoreFiles(
        S3Store(
            root.partition("://")[2].partition("/")[0],
            endpoint=endpoint_url,
            region="us-east-1",
            access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
            secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
            client_options={"allow_http": True, "timeout": "10s"},
            retry_config={"max_retries": 0},
        )
    )


def azure_files(root: str, endpoint_url: str | None) -> AbstractFileSystem:
    """Like ``s3_files``; the connection string contains the account and its key."""
    found = dict(
        part.split("=", 1) for part in os.environ["AZURE_STORAGE_CONNECTION_STRING"].strip(";").split(";")
    )
    return ObstoreFiles(
        AzureStore(
            root.partition("://")[2].partition("/")[0],
            endpoint=endpoint_url,
            account_name=found["AccountName"],
            account_key=found["AccountKey"],
            client_options={"allow_http": True, "timeout": "10s"},
            retry_config={"max_retries": 0},
        )
    )


def gcs_files(root: str, endpoint_url: str | None) -> AbstractFileSystem:
    """Like ``s3_files``, for a server without credentials."""
    service = {"gcs_base_url": endpoint_url, "disable_oauth": True, "client_email": "", "private_key": ""}
    return ObstoreFiles(
        GCSStore(
            root.partition("://")[2].partition("/")[0],
            service_account_key=__import__("json").dumps(service | {"private_key_id": ""}),
            client_options={"allow_http": True, "timeout": "10s"},
            retry_config={"max_retries": 0},
        )
    )


def _key(path: str) -> str:
    return path.partition("/")[2].strip("/")


def _info(path: str, meta: Any) -> dict[str, Any]:
    return {
        "name": path,
        "type": "file",
        "size": meta["size"],
        "etag": meta["e_tag"],
        "LastModified": meta["last_modified"],
    }


def _translated(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except NotFoundError as error:
        raise FileNotFoundError(type(error).__name__) from None
    except AlreadyExistsError as error:
        raise FileExistsError(type(error).__name__) from None
    except PermissionDeniedError as error:
        raise PermissionError(type(error).__name__) from None
