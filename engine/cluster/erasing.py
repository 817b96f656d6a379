"""Methods that permanently erase records, and check an erasure."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.engine.cluster.arguments import TopicNames, names
from stratalog.engine.cluster.recorded import always, operation
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.reading.positions import micros, time_of
from stratalog.engine.upkeep.erasing import erase as erasing
from stratalog.engine.upkeep.erasing.certificate import read_certificate
from stratalog.engine.upkeep.erasing.plan import WantedRecords
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.engine.upkeep.erasing.snapshot_run import ReduceLarge
from stratalog.engine.upkeep.erasing.verify import verify_erased
from stratalog.partitions.errors import InvalidCallError, OutcomeUnknownError


class Erasing:
    """An open cluster, for erasing records."""

    _ports: Ports

    if TYPE_CHECKING:

        def _reduce_large(self) -> ReduceLarge: ...

    @operation("erase", destroys=always, redacted=("keys", "where"))
    def erase(
        self,
        topics: TopicNames,
        keys: Sequence[object] | None = None,
        *,
        where: str | None = None,
        before: datetime | str | None = None,
        now: bool = False,
        certificate: Path | str | None = None,
        dry_run: bool = False,
        check: bool = True,
    ) -> ErasureReport:
        """Permanently erase every record that has one of these keys or matches a condition, from all replicas and
        from the remote tier. All other records keep their offsets; in a topic with snapshots, the log then starts
        at a snapshot without the keys. The next call with the same arguments, after
        ``file.delete.delay.ms``, deletes the files that had the records; its certificate names these files.

            report = cluster.erase("trips", ["rider-17"], certificate="erased.json")
            report.whole
            cluster.erase("trips", where="value.rider = 'Ada' AND value.fare > 100")

        Args:
            topics: one or more topics: a,b
            keys: the keys, of the topics' key type; if keys are binary, text is encoded as UTF-8. Without ``keys``
                and ``where``, continue the erasure that an earlier call began
            where: erase the records for which this condition is true; with ``keys``, only records of these keys.
                The condition compares columns with literals of their types, as in Spark SQL; see
                docs/operations.md
            before: erase only records with an earlier timestamp
            now: delete the replaced files immediately; readers that use them fail
            certificate: write the certificate, as JSON, to this file, which must not exist
            dry_run: count the records, files and bytes; change nothing

        Raises: PolicyViolationError for a topic from which records cannot be erased everywhere, InvalidCallError,
            InvalidTopicError, UnknownTopicOrPartitionError. If it raises any of these, nothing was changed.
        """
        named = names(topics)
        if not named:
            raise InvalidCallError("name the topics to erase records from")
        if keys is not None and isinstance(keys, str | bytes):
            raise InvalidCallError("keys is a list of keys: to erase the records of one key, give [key]")
        if keys is None and where is None and before is not None:
            raise InvalidCallError("before needs keys or where")
        before_us = None if before is None else micros(time_of(before, "before ="))
        path = None if certificate is None else Path(certificate)
        wanted = WantedRecords(keys, where, before_us)

        def run() -> ErasureReport:
            large = self._reduce_large()
            return erasing.erase(
                *self._ports.for_tasks, named, wanted, reduce_large=large, now=now, dry_run=dry_run
            )

        if path is None:
            return run()
        with _reserved(path):
            report = run()
            return report if report.certificate is None else _with_certificate(report, path)

    @operation("verify --erased", leaves_event=False, redacted=("where",))
    def verify_erased(self, certificate: Path | str, *, where: str | None = None) -> Report:
        """Read every copy of the partitions that a certificate names, and search for its keys. Each copy is
        reported as erased, not erased, or unknown (if it cannot be read).

        Args:
            certificate: the certificate of ``erase``
            where: the condition given to ``erase``, whose text is not in the certificate. Without the condition,
                only the offsets of the certificate are checked

        Raises: InvalidCallError if the file is not a certificate, if it is the certificate of another cluster, or
            if the condition is not the one in the certificate.
        """
        return verify_erased(*self._ports.for_tasks, read_certificate(Path(certificate)), where)


@contextmanager
def _reserved(path: Path) -> Iterator[None]:
    """A context manager that creates a new empty file, which only this user may read, before anything is erased.
    If the file is still empty after the block, the context manager removes it.

    Raises: InvalidCallError if the file exists, or cannot be created.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError as error:
        raise InvalidCallError(f"{path} exists: give the certificate another name") from error
    except OSError as error:
        raise InvalidCallError(f"the certificate cannot be written to {path}: {error.strerror}") from error
    try:
        yield
    finally:
        if path.is_file() and not path.stat().st_size:
            path.unlink()


def _with_certificate(report: ErasureReport, path: Path) -> ErasureReport:
    """Write the certificate. If that fails, the report says so."""
    assert report.certificate is not None
    try:
        path.write_bytes(report.certificate.to_json())
    except OSError as error:
        lost = Failure(str(path), OutcomeUnknownError.code, f"the certificate was not written: {error.strerror}")
        return replace(report, failures=[*report.failures, lost])
    return report
