"""CRC-32C, the checksum of Kafka's batches: by google-crc32c, which uses the processor's CRC instruction."""

from __future__ import annotations

from stratalog.partitions.errors import EnvironmentUnusableError

try:
    import google_crc32c
except ModuleNotFoundError as error:
    raise EnvironmentUnusableError(
        "checksums of Kafka's batches need google-crc32c, which is not installed: "
        "pip install 'stratalog[kafka-tier]'"
    ) from error


def crc32c(data: bytes) -> int:
    """The CRC-32C of bytes."""
    found: int = google_crc32c.value(data)
    return found
