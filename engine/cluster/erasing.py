"""Erasing the records of keys for good, as methods."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from stratalog.engine.cluster.arguments import TopicNames, names
from stratalog.engine.cluster.recorded import always, operation
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.reading.positions import micros, time_of
from stratalog.engine.upkeep.erasing import erase as erasing
from stratalog.engine.upkeep.erasing.certificate import read_certificate
from stratalog.engine.upkeep.erasing.plan import WantedRecords
from stratalog.engine.upkeep.erasing.verify import verify_erased
from stratalog.partitions.errors import InvalidCallError


class Erasing:
    """An open cluster, for erasing records."""

    _ports: Ports

    @operation("erase", destroys=always, redacted="keys")
    def erase(
        self,
        topics: TopicNames,
        keys: Sequence[object] | None = None,
        *,
        before: datetime | str | None = None,
        now: bool = False,
        certificate: Path | str | None = None,
        dry_run: bool = False,
        check: bool = True,
    ) -> erasing.ErasureReport:
        """Erase every record of these keys for good, in all replicas, at unchanged offsets of all others. The
        files that had them are deleted by the next call, after ``file.delete.delay.ms``. With the same
        keys, its certificate names them.

            report = cluster.erase("trips", ["rider-17"], certificate="erased.json")
            report.whole

        Args:
            topics: one topic, or several: a,b
            keys: the keys, of the topics' key type; text is UTF-8 where keys are binary. None: carry on with what
                an earlier call has begun
            before: erase only records with an earlier timestamp
            now: delete the replaced files at once; readers that use them fail
            certificate: write the certificate, as JSON, to this file
            dry_run: count the records, files and bytes; change nothing

        Raises: PolicyViolationError for a topic from which records cannot be erased everywhere, InvalidCallError,
            InvalidTopicError, UnknownTopicOrPartitionError: nothing was changed.
        """
        named = names(topics)
        if not named:
            raise InvalidCallError("name the topics to erase records from")
        if keys is not None and isinstance(keys, str | bytes):
            raise InvalidCallError("keys is a list of keys: to erase those of one key, give [key]")
        if keys is None and before is not None:
            raise InvalidCallError("before needs keys")
        before_us = None if before is None else micros(time_of(before, "before ="))
        path = None if certificate is None else Path(certificate)
        if path is not None and path.exists():
            raise InvalidCallError(f"{path} exists: give the certificate another name")
        if path is not None and not path.parent.is_dir():
            raise InvalidCallError(f"{path.parent} is no folder: the certificate could not be written there")
        wanted = WantedRecords(keys, before_us)
        report = erasing.erase(*self._ports.for_tasks, named, wanted, now=now, dry_run=dry_run)
        if path is not None and report.certificate is not None:
            path.write_bytes(report.certificate.to_json())
        return report

    @operation("verify --erased", leaves_event=False)
    def verify_erased(self, certificate: Path | str) -> Report:
        """Read every copy of the partitions that a certificate names, and look for its keys. Each copy is erased,
        not erased, or unknown, as it cannot be read.

        Args:
            certificate: the certificate of ``erase``

        Raises: InvalidCallError for a file that is none, or is that of another cluster.
        """
        return verify_erased(*self._ports.for_tasks, read_certificate(Path(certificate)))
