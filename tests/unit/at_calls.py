"""Acts at a call inside the product, or lets the driver die there, for tests of races and of crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest


def during(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object], *, after: bool = False
) -> None:
    """Act once, before or after the next call of ``owner.name``."""
    call, done = getattr(owner, name), []

    def called(*args: Any, **named: Any) -> Any:
        first = not done
        done.append(True)
        if first and not after:
            act()
        result = call(*args, **named)
        if first and after:
            act()
        return result

    monkeypatch.setattr(owner, name, called)


@contextmanager
def dies_at(owner: Any, name: str, *, after: bool = False) -> Iterator[None]:
    """The driver of the block dies before or after its call of ``owner.name``. Fails if the block makes none."""
    call = getattr(owner, name)

    def die(*args: Any, **named: Any) -> NoReturn:
        if after:
            call(*args, **named)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises(KeyboardInterrupt):
            yield


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """A function that takes anything and raises this error."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail
