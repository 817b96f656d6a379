"""A process's view of a root. Every call waits at the scheduler, then takes effect, fails, or both; a call whose
answer is lost may take effect much later, even after the end of the process, like a request in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from stratalog.partitions.errors import (
    BrokerUnreachableError,
    OutcomeUnknownError,
    Right,
    StorageAuthorizationError,
    StorageError,
    StoreTimeoutError,
)
from stratalog.partitions.paths import BROKER_FILE
from tests.simulation.roots import Root
from tests.simulation.scheduler import Driver, Verdict
from tests.simulation.stores import Note, SimStore

T = TypeVar("T")


class Surroundings(Protocol):
    """The world as a store sees it."""

    def current(self) -> Driver:
        """The calling thread."""
        ...

    def send(self, what: str, root: Root, name: str, effect: Callable[[], object]) -> None:
        """Let a call take effect later."""
        ...

    def failed(self) -> None:
        """Report a failed call."""
        ...

    def may_write(self, driver: Driver, root: Root) -> bool:
        """Whether the driver has the right to change the root."""
        ...

    def intends(self, root: Root, name: str, data: bytes) -> None:
        """Report that a file is about to be created."""
        ...

    def changed(self, what: str, root: Root, name: str, before: bytes | None) -> None:
        """Report that a call has changed a root; ``before`` is the previous content of the name."""
        ...


class QuorumStore(SimStore):
    """One process's view of one root."""

    def __init__(
        self,
        root: Root,
        around: Surroundings,
        now_ms: Callable[[], int],
        note: Note,
        page: Callable[[], int],
        constant_roots: bool,
    ) -> None:
        super().__init__(root, None, now_ms, note, page, constant_roots)  # type: ignore[arg-type]
        self._around = around

    def __repr__(self) -> str:
        return f"QuorumStore({self.uri!r})"

    def call(self, what: str, name: str, effect: Callable[[], T]) -> T:
        """One call: the point of interleaving, the faults, the effect."""
        root, driver = self.root, self._around.current()
        verdict = Verdict.GO
        if name != BROKER_FILE or not self._constant_roots:
            verdict = driver.point(what, root.place, name)
        if not root.reachable:
            self._note(driver, what, root.place, name, "unreachable")
            self._around.failed()
            raise BrokerUnreachableError(f"{self.uri} does not answer")
        changes = what in ("create", "commit", "delete")
        if what in ("create", "commit", "delete") and not self._around.may_write(driver, root):
            self._note(driver, what, root.place, name, "not allowed")
            right: Right = "delete" if what == "delete" else "create"
            raise StorageAuthorizationError(f"{self.uri}: {name}: not allowed", right, self.uri_of(name))
        if verdict is Verdict.REFUSE or (root.full and changes and what != "delete"):
            self._note(driver, what, root.place, name, "refused")
            self._around.failed()
            raise StorageError(f"{self.uri} refused to {what} {name}")
        result: Any = None
        if verdict is Verdict.LATE and changes:
            self._note(driver, what, root.place, name, "later")
            self._around.send(what, root, name, lambda: self._take(what, name, effect))
        else:
            try:
                result = self._take(what, name, effect) if changes else effect()
            except Exception as error:
                self._note(driver, what, root.place, name, type(error).__name__)
                raise
            self._note(driver, what, root.place, name, result)
        if verdict is Verdict.DIE_AFTER:
            driver.die()
        if verdict in (Verdict.LOSE_ANSWER, Verdict.LATE):
            if what in ("create", "commit"):
                raise OutcomeUnknownError(f"{self.uri}: no answer whether {name} was created")
            if what == "delete":
                raise StorageError(f"{self.uri}: cannot delete {name}")
            self._around.failed()
            raise StoreTimeoutError(f"{self.uri}: no answer")
        return result  # type: ignore[no-any-return]

    def _take(self, what: str, name: str, effect: Callable[[], T]) -> T:
        found = self.root.get(name)
        result = effect()
        if result is not False:
            self._around.changed(what, self.root, name, None if found is None else found[1])
        return result

    def create(self, name: str, data: bytes) -> bool:
        self._around.intends(self.root, name, data)
        return super().create(name, data)
