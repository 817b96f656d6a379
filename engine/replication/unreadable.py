"""Records that a copy cannot provide: the error, and the fallback to another copy. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stratalog.partitions.errors import CorruptionError, CorruptSegmentError

REMEDY = (
    "run heal, which repairs the file if a broker or the remote tier has a good copy; then plan the read again, "
    "because an older plan may name the bad file"
)


def unreadable(what: str, start: int, end: int | None, why: object) -> CorruptSegmentError:
    """The error for records ``[start, end)`` of the partition ``what``, in one line. ``why`` names the file.
    ``end`` is None if only the unreadable file shows the end.
    """
    offsets = f"offsets from {start} on" if end is None else f"offsets [{start}, {end})"
    return CorruptSegmentError(f"{what}: {offsets} cannot be read: {' '.join(str(why).split())}")


def with_remedy(*errors: CorruptionError) -> CorruptionError:
    """Combines the errors into one, with the class of the first, and appends the remedy."""
    return type(errors[0])(f"{'; '.join(map(str, errors))}; {REMEDY}", broker_id=errors[0].broker_id)


class PassedOver:
    """Damaged copies that a reader skipped."""

    def __init__(self) -> None:
        self._found: list[CorruptionError] = []

    @contextmanager
    def copy(self) -> Iterator[None]:
        """Return a context in which to read one copy. Damage ends the block and is recorded."""
        try:
            yield
        except CorruptionError as error:
            self._found.append(error)

    @property
    def notes(self) -> tuple[str, ...]:
        """One line per damaged copy."""
        return tuple(str(with_remedy(error)) for error in self._found)

    @property
    def error(self) -> CorruptionError:
        """All damage as one error, if no copy was good."""
        return with_remedy(*self._found)
