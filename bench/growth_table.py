"""Fits how a cost grows with the size, and describes it in a line. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from bench.options import size_text

FLAT = 0.15
"""Up to this exponent between the last two sizes, a cost is called flat: 1.4 times for ten times the size."""
LINEAR = 1.2
"""From ``SLOWER`` up to this exponent a cost is called linear."""
SLOWER = 0.8
NOTE = (
    "Three replicas on a file system in memory, no Spark. CPU: process CPU time per operation. Requests: calls "
    "to the brokers and the remote tier (listing a folder counts as two). Bytes: read and written by the "
    "process. k: cost grows as size^k, fitted over all sizes (in brackets: over the last two); 0 is flat, 1 is "
    "linear. Times: the factor by which CPU time grew from the smallest to the largest size, and the factor by "
    "which the size grew. "
    "Growth: the verdict, based on the largest k over the last two sizes. Flat means a k of at most 0.15, that "
    "is, at most 1.4 times the cost at ten times the size."
)


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: float
    requests: int
    bytes: int
    """Bytes read and written by this process."""


@dataclass(frozen=True, slots=True)
class GrowthLine:
    """The costs of one operation, by the size of the existing data or of the moved data."""

    headings: ClassVar[tuple[str, ...]] = (
        *("operation", "size", "CPU", "k", "requests", "k", "bytes", "k", "times", "growth"),
    )

    what: str
    costs: Mapping[int, Cost]
    """Costs, keyed by size; at least two, ascending."""
    note: str = ""

    @property
    def verdict(self) -> str:
        """The growth of the worst cost between the last two sizes."""
        last = {size: self.costs[size] for size in [*self.costs][-2:]}
        worst = max(exponent({size: part(cost) for size, cost in last.items()}) for part in _PARTS)
        if worst <= FLAT:
            return "flat"
        if worst < SLOWER:
            return "grows slower than the size"
        return "linear" if worst <= LINEAR else "grows faster than the size"

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as texts, one for each of ``headings``."""
        sizes, costs = [*self.costs], [*self.costs.values()]
        times = costs[-1].cpu_s / max(costs[0].cpu_s, _LEAST_S)
        return (
            self.what,
            ", ".join(f"{size:,}" for size in sizes),
            ", ".join(_milliseconds(cost.cpu_s) for cost in costs) + " ms",
            self._fit(0),
            ", ".join(f"{cost.requests:,}" for cost in costs),
            self._fit(1),
            ", ".join(size_text(cost.bytes) for cost in costs),
            self._fit(2),
            f"{times:.1f} in {sizes[-1] / sizes[0]:g}",
            self.verdict,
        )

    def _fit(self, part: int) -> str:
        known = {size: _PARTS[part](cost) for size, cost in self.costs.items()}
        last = {size: known[size] for size in [*known][-2:]}
        return f"{exponent(known):.2f} ({exponent(last):.2f})"


_LEAST_S = 1e-6
"""The smallest number of CPU seconds that is assumed, because the clock of a process may not advance in a short
operation.
"""
_PARTS: tuple[Callable[[Cost], float], ...] = (
    lambda cost: max(cost.cpu_s, _LEAST_S),
    lambda cost: max(cost.requests, 1),
    lambda cost: max(cost.bytes, 1),
)


def exponent(costs: Mapping[int, float]) -> float:
    """The k of cost ~ size^k, by least squares of the logarithms.

    Raises: ValueError for fewer than two sizes, and for a cost that is not above zero.
    """
    if len(costs) < 2:
        raise ValueError("a fit takes two sizes")
    x = [math.log(size) for size in costs]
    y = [math.log(cost) for cost in costs.values()]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    rise = sum((one - mean_x) * (other - mean_y) for one, other in zip(x, y, strict=True))
    return rise / sum((one - mean_x) ** 2 for one in x)


def sizes_up_to(most: int) -> Sequence[int]:
    """Powers of ten from ten on, and ``most``."""
    return [*(10**power for power in range(1, len(str(most))) if 10**power < most), most]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}" if seconds < 0.01 else f"{seconds * 1000:,.0f}"
