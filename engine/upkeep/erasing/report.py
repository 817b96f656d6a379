"""The report of an erasure."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import PartitionRow
from stratalog.engine.upkeep.erasing.certificate import Certificate

BAD_RECORDS = (
    "appends that keep bad records put them into a topic of the caller's choice (bad_record_topic), which may "
    "hold records of the same keys: erase from it, too"
)
"""A note: no configuration says which topic that is."""


class EraseRow(PartitionRow, frozen=True, kw_only=True):
    """A partition. ``records`` counts its erased offsets, or, in a topic with snapshots, the records of the keys
    in the log and in its latest snapshot. In a dry run, what a run would do; None if this is unknown, because the
    partition could not be searched.
    """

    records: int | None
    files: int | None
    """Files of the leader that were rewritten."""
    remote_files: int | None
    """Segments of the remote log that were rewritten, or files of the table of snapshots that were replaced."""
    read_bytes: int | None
    written_bytes: int | None
    deleted_files: int | None
    """On all brokers and in the remote tier."""
    not_erased: int
    why: str | None


@dataclass(frozen=True, slots=True, repr=False)
class ErasureReport(Report):
    """The report of an erasure, with its certificate (None in a dry run)."""

    certificate: Certificate | None = None

    @property
    def whole(self) -> bool:
        """Whether no byte of an erased record is left."""
        return self.certificate is not None and self.certificate.whole


def report_with(of: Report, certificate: Certificate | None) -> ErasureReport:
    """The report, with its certificate."""
    fields = {name: getattr(of, name) for name in Report.__dataclass_fields__}
    return ErasureReport(**fields, certificate=certificate)
