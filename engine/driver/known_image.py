"""The metadata for read-only operations; without a majority of voters, the last known state with a note."""

from __future__ import annotations

from stratalog.engine.driver.report import Failure
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.partitions.errors import NoMajorityError, StorageRefusedError


def known_image(metadata: MetadataClient, run: OperationRun) -> ClusterImage:
    """Return the committed metadata. If too few voters are reachable, return the last metadata that this driver
    read, with a failure that says so. No decision may rest on this result.

    Raises: errors from ``MetadataClient.image``; NoMajorityError if no state is known.
    """
    try:
        return metadata.image()
    except (NoMajorityError, StorageRefusedError) as error:
        known = metadata.last_known.image
        if known.next_offset == 0:
            raise
        run.failures.append(
            Failure(
                "metadata", error.code, f"{error}. The last known state is shown, up to offset {known.next_offset}"
            )
        )
        return known
