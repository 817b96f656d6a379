"""The Iceberg table of a tiered topic in an erasure (``stratalog.tiering.iceberg_history``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.upkeep.erasing.certificate import ErasedIceberg, NotErased
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.records import schema_of

if TYPE_CHECKING:
    from stratalog.tiering.delta_table import DeltaTopicTable


_WAITS = (
    "no snapshot names it, and a job may be about to commit it: erase again when file.delete.delay.ms has passed, "
    "rounded up to hours; or immediately with now (a job: --now), if no program writes to the table"
)


@dataclass(frozen=True, slots=True)
class ErasedTwin:
    """The Iceberg table after a run."""

    erased: ErasedIceberg
    left: tuple[NotErased, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class IcebergTwin:
    """The Iceberg table of one topic. A catalog that does not answer stops nothing else."""

    storage: Storage
    topic: TopicImage
    name: str
    remote: DeltaTopicTable
    error: StratalogError | None = field(default=None, init=False)

    @property
    def where(self) -> str:
        """Its name in a certificate."""
        return f"Iceberg table {self.name}"

    def follow(self) -> None:
        """Step 1: list what the Delta table lists. An error is left for ``delete_history``."""
        try:
            self.storage.iceberg_table(self.topic, self.name).follow_clean(self.remote, self._schema)
        except StratalogError as error:
            self.error = error

    def delete_history(self, *, due: bool, settled_ms: int | None) -> ErasedTwin:
        """Steps 3 to 7, if they are ``due``. ``settled_ms``: see ``IcebergTable.delete_history``."""
        here = ErasedIceberg(self.name, None)
        if not due and self.error is None:
            why = (
                "its older snapshots have statistics of erased records, and are deleted together with the history "
                "of the Delta table"
            )
            return ErasedTwin(here, (NotErased(self.where, why, waits=True),))
        try:
            if self.error is not None:
                raise self.error
            table = self.storage.iceberg_table(self.topic, self.name)
            found = table.delete_history(self.remote, self._schema, settled_ms=settled_ms)
        except StratalogError as error:
            why = f"its history cannot be deleted: {error.code}: {error}; erase again when its catalog answers"
            return ErasedTwin(here, (NotErased(self.where, why),))
        left = tuple(NotErased(f"{self.where}: {what}", why) for what, why in found.left)
        left += tuple(NotErased(f"{self.where}: {file}", _WAITS, waits=True) for file in found.waiting)
        erased = here if left else ErasedIceberg(self.name, found.sequence_number)
        notes = (f"{self.topic.name}: {found.files} files of {self.where} were deleted",) if found.files else ()
        return ErasedTwin(erased, left, notes)

    def planned(self) -> str:
        """A note of a dry run."""
        return (
            f"{self.topic.name}: the older snapshots of {self.where} are removed, with their files, together with "
            "the history of the Delta table"
        )

    @property
    def _schema(self) -> pa.Schema:
        return schema_of(self.topic.key_schema, self.topic.value_schema)
