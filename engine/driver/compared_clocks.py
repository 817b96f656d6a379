"""Compares this driver's clock with those of the brokers' storage, to decide whether to delete by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of
from stratalog.engine.metadata.image import ClusterImage
from stratalog.partitions.agreed_time import agree, agreed_by_most
from stratalog.partitions.amounts import span_text
from stratalog.partitions.clock import Clock
from stratalog.partitions.runner import Done


@dataclass(frozen=True, slots=True)
class ComparedClocks:
    """The time of the driver, and the times of the brokers' storage."""

    driver_ms: int
    brokers_ms: Mapping[int, int | None]
    """Keyed by broker; None if its storage has no time."""

    @property
    def agreed_ms(self) -> int | None:
        """The current time, for deletion by time (``partitions.agreed_time``); None: delete nothing."""
        return agreed_by_most(self.driver_ms, self.brokers_ms.values())

    @property
    def stamp_ms(self) -> int:
        """The timestamp to record for later deletion: the driver's time, or the time of most brokers if that is
        later.
        """
        known = sorted(storage_ms for storage_ms in self.brokers_ms.values() if storage_ms is not None)
        return max(self.driver_ms, known[len(known) // 2]) if known else self.driver_ms

    @property
    def apart(self) -> dict[int, int]:
        """The brokers whose storage disagrees with the driver, and how far the driver is ahead of each."""
        return {
            broker_id: self.driver_ms - storage_ms
            for broker_id, storage_ms in sorted(self.brokers_ms.items())
            if storage_ms is not None and not agree(self.driver_ms, storage_ms)
        }

    @property
    def driver_fault(self) -> str | None:
        """The reason why nothing is deleted by time; None if deletion by time is possible."""
        if self.agreed_ms is not None:
            return None
        if not self.apart:
            return "no broker's storage reports a time, so nothing is deleted by time"
        broker_id, ahead_ms = next(iter(self.apart.items()))
        return (
            f"this machine's clock is {_span(ahead_ms)} the storage's clock (broker {broker_id}): nothing is "
            "deleted by time until the two agree; correct the wrong clock"
        )

    @property
    def broker_faults(self) -> dict[int, str]:
        """The consequences of a wrong clock, for each broker whose storage disagrees with this driver and with
        most other brokers.
        """
        if self.agreed_ms is None:
            return {}
        return {
            broker_id: f"its storage's clock is {_span(-ahead_ms)} the clocks of this machine and most brokers: "
            "no file on this broker is deleted by time until the clocks agree; correct the storage's clock"
            for broker_id, ahead_ms in self.apart.items()
        }

    @property
    def notes(self) -> list[str]:
        """Notes about wrong clocks, for reports."""
        found = [] if self.driver_fault is None else [self.driver_fault]
        return found + [f"broker {broker_id}: {what}" for broker_id, what in self.broker_faults.items()]


def _span(ahead_ms: int) -> str:
    return f"{span_text(abs(ahead_ms))} {'ahead of' if ahead_ms > 0 else 'behind'}"


def compared_clocks(storage: Storage, clock: Clock, image: ClusterImage) -> ComparedClocks:
    """The clocks of the driver and the unfenced brokers; None for a broker that does not answer."""
    brokers = [
        broker_id
        for broker_id in storage.stores
        if broker_id in image.brokers and not image.brokers[broker_id].fenced
    ]
    deadline_s = cluster_config_of(image).broker_session_timeout_ms / 1000
    outcomes = storage.prober.probe(lambda broker_id: storage.stores[broker_id].now_ms(), brokers, deadline_s)
    brokers_ms = {one.item: one.value for one in outcomes if isinstance(one, Done)}
    return ComparedClocks(clock.now_ms(), brokers_ms)


def removal_time(storage: Storage, clock: Clock, image: ClusterImage, run: OperationRun) -> int | None:
    """The time for all deletion by time in this run. None: delete nothing; the run's notes give the reason."""
    clocks = compared_clocks(storage, clock, image)
    run.notes += clocks.notes
    return clocks.agreed_ms
