"""The producers of transactional ids whose last transaction has ended in this driver.

The next transaction of the id goes on with its producer, whose epoch the end has raised. A producer is given out
once: two transactions that are open at the same time never have the same one.
"""

from __future__ import annotations

import os

from stratalog.engine.state.transaction_state import Transaction
from stratalog.partitions.cache import BoundedCache

_MOST_IDS = 1000


class TransactionalProducers:
    """The state in which this driver has left each transactional id. Thread-safe."""

    def __init__(self) -> None:
        self._left: BoundedCache[str, tuple[int, Transaction]] = BoundedCache(_MOST_IDS)

    def take(self, transactional_id: str) -> Transaction | None:
        """The state as it was left; None where this driver has not, or somebody here goes on with it."""
        process, left = self._left.take(transactional_id) or (None, None)
        return left if process == os.getpid() else None  # after a fork both processes would have it

    def give_back(self, transactional_id: str, left: Transaction) -> None:
        """Its transaction has ended."""
        self._left.put(transactional_id, (os.getpid(), left))
