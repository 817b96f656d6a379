"""Being written."""

from partitions.clock import Clock
from partitions.errors import UnsupportedStoreError
from partitions.store.memory import MemoryStore
from partitions.store.protocol import StoreOptions


class S3Store(MemoryStore):
    def __init__(self, bucket: str, prefix: str, options: StoreOptions, clock: Clock) -> None:
        raise UnsupportedStoreError("s3 is being written")
