"""The price of requests to object stores, for the report of a dry run (``stratalog.engine.driver.planned``)."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.partitions.store import StoreCounts

PUT_DOLLARS = 0.005 / 1000
"""List price of a PUT, COPY, POST or LIST request, S3 Standard in us-east-1 (first half of 2026)."""
GET_DOLLARS = 0.0004 / 1000
"""List price of a GET or HEAD request, for the same storage. DELETE costs nothing."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Counts of requests to object stores by price class, and the bytes that they read and write."""

    puts: int = 0
    """The number of requests billed as PUTs: PUT, COPY, POST and LIST."""
    gets: int = 0
    """The number of requests billed as GETs: GET and HEAD."""
    moved_bytes: int = 0

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.puts + other.puts, self.gets + other.gets, self.moved_bytes + other.moved_bytes)

    def __str__(self) -> str:
        requests = f"{self.puts:,} requests at the price of a PUT, {self.gets:,} at the price of a GET"
        return f"{requests}, {self.moved_bytes:,} bytes moved: {self.dollars:.6f} dollars"

    @property
    def dollars(self) -> float:
        """The price of the requests. It does not include storage and traffic."""
        return self.puts * PUT_DOLLARS + self.gets * GET_DOLLARS

    def columns(self) -> dict[str, int | float]:
        """The figures by name, for JSON."""
        figures = {"put_requests": self.puts, "get_requests": self.gets, "moved_bytes": self.moved_bytes}
        return {**figures, "dollars": round(self.dollars, 9)}

    @classmethod
    def of(cls, counts: StoreCounts) -> Estimate:
        """The price classes of counted requests."""
        puts = counts.creates + counts.copies + counts.lists
        return cls(puts, counts.reads, counts.read_bytes + counts.written_bytes)
