"""Changed JSON: values of other types and sizes, nested ones, fields that are missing, duplicate, or unknown.

A tree is as ``json.loads`` returns it, except that objects are lists of their members, so that a member may occur
twice, and that ``Raw`` text is written unchanged.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tests.fuzz.mutations_of_bytes import Mutated


class Members(list[Any]):
    """The names and values of an object."""


@dataclass(frozen=True, slots=True)
class Raw:
    """JSON text that no tree produces."""

    text: str


def _nested(depth: int, opening: str = "[", closing: str = "]") -> Raw:
    return Raw(opening * depth + closing * depth)


ODD_NUMBERS = (
    *(0, 1, -1, 2, 255, 2**31 - 1, 2**31, 2**32, 10**10 - 1, 10**10, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63)),
    *(10**20 - 1, 10**20, 1.5, -0.0, 1e308),
    *(
        Raw("1e999"),
        Raw("NaN"),
        Raw("-Infinity"),
        Raw("0x10"),
        Raw("00000000001"),
        Raw("9" * 4400),
        Raw("1" + "0" * 400),
    ),
)
ODD_TEXTS = (
    *(
        "",
        " ",
        "\0",
        "x" * 300,
        "x" * 70_000,
        "../../../x",
        "/",
        "..",
        "a/b",
        "\x1b[31m",
        "\x1b]0;owned\a",
        "a\r\nb",
    ),
    *("\u202e", "\ud800", "\uffff", "é", "null", "0" * 32, "f" * 32, "9" * 4400, "os.system", "test.__main__.x"),
    *("'; DROP TABLE t --", "`a`", "${x}", "%s%n", "{0}", "file:///etc/passwd", "\N{ZERO WIDTH SPACE}", "٣", "²"),
)
ODD_VALUES = (
    *(None, True, False, [], Members(), [[]], [None], Members([("", None)])),
    *(
        _nested(200),
        _nested(5000),
        _nested(100_000),
        _nested(30_000, '{"a":', "}"),
        Raw('{"a":' * 3000 + "1" + "}" * 3000),
    ),
    *(Raw(""), Raw(","), Raw('"'), Raw("nul"), Raw("[1,]"), Raw('"\\ud800"'), Raw('"\\u0000"'), Raw("'a'")),
)


def parse(data: bytes) -> Any:
    """Parse the text. Raises: ValueError."""
    return json.loads(data, object_pairs_hook=Members)


def text_of(node: Any) -> str:
    """The JSON text of a tree; compact, as it is written."""
    match node:
        case Raw(text):
            return text
        case Members():
            return "{" + ",".join(f"{json.dumps(name)}:{text_of(value)}" for name, value in node) + "}"
        case list():
            return "[" + ",".join(map(text_of, node)) + "]"
        case _:
            return json.dumps(node, ensure_ascii=False) if not _lone(node) else json.dumps(node)


def mutate_json(rng: random.Random, data: bytes) -> Mutated:
    """Make one to three changes anywhere, including in JSON inside a string. Raises: ValueError if the text is not
    JSON."""
    tree = parse(data)
    done: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        tree, what = _changed(rng, tree)
        done.append(what)
    return Mutated(text_of(tree).encode("utf-8", "surrogatepass"), "JSON: " + "; ".join(done))


def mutate_lines(rng: random.Random, data: bytes) -> Mutated:
    """Change one of several lines like ``mutate_json``; or remove, repeat or reorder lines.

    Raises: ValueError.
    """
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    match rng.randrange(8):
        case 0:
            gone = lines.pop(at)
            return Mutated(b"\n".join(lines), f"without line {at}: {gone[:60]!r}")
        case 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
            return Mutated(b"\n".join(lines), f"line {at} twice")
        case 2:
            rng.shuffle(lines)
            return Mutated(b"\n".join(lines), "lines in another order")
    changed = mutate_json(rng, lines[at])
    lines[at] = changed.data
    return Mutated(b"\n".join(lines), f"line {at}: {changed.what}")


def _changed(rng: random.Random, tree: Any) -> tuple[Any, str]:
    places = list(_places(tree, ()))
    path = rng.choice(places)
    if not path:
        return _odd(rng, tree)
    holder = tree
    for step in path[:-1]:
        holder = _at(holder, step)
    return tree, f"{'.'.join(map(str, _named(tree, path)))}: {_change_member(rng, holder, path[-1])}"


def _change_member(rng: random.Random, holder: Any, at: int) -> str:
    value = _at(holder, at)
    match rng.randrange(12):
        case 0:
            del holder[at]
            return "gone"
        case 1:
            holder.insert(at, holder[at])
            return "there twice"
        case 2 if isinstance(holder, Members):
            name = rng.choice(("unknown", "", holder[at][0].upper(), holder[at][0] + "s", "type", "version"))
            holder[at] = name, value
            return f"called {name!r}"
        case 3 if isinstance(holder, Members):
            odd, what = _odd(rng, None)
            holder.insert(at, ("unknown", odd))
            return f"an unknown field before it: {what}"
        case 4 if len(holder) > 1:
            other = rng.randrange(len(holder))
            mine, others = _at(holder, at), _at(holder, other)
            _put(holder, at, others)
            _put(holder, other, mine)
            return f"changed with that at {other}"
        case _:
            odd, what = _odd(rng, value)
            _put(holder, at, odd)
            return what


def _odd(rng: random.Random, value: Any) -> tuple[Any, str]:
    """An odd replacement for a value, and its description."""
    found: Any
    inside = _json_inside(value)
    choices: list[Callable[[], Any]] = [
        lambda: deepcopy(rng.choice(ODD_VALUES)),
        lambda: rng.choice(ODD_TEXTS),
        lambda: rng.choice(ODD_NUMBERS),
    ]
    if isinstance(value, int) and not isinstance(value, bool):
        near = (value + 1, value - 1, value * 10, -value, value + 1000, value + 10**6, value + 10**9)
        choices += [
            lambda: rng.choice(near),
            lambda: rng.choice(near),
            lambda: rng.choice(ODD_NUMBERS),
            lambda: str(value),
        ]
    if isinstance(value, str):
        choices += [
            lambda: rng.choice(ODD_TEXTS),
            lambda: value + "x",
            lambda: value[:-1],
            lambda: value.swapcase(),
        ]
    if isinstance(value, list):
        choices += [
            lambda: type(value)([*value, *value]),
            lambda: type(value)(value[: len(value) // 2]),
            lambda: [one[1] for one in value] if isinstance(value, Members) else Members([("0", value)]),
        ]
    if inside is not None:
        choices += [lambda: text_of(_changed(rng, inside)[0])] * 3
    found = rng.choice(choices)()
    shown = text_of(found)
    return found, shown if len(shown) <= 60 else f"{shown[:40]}.. ({len(shown)} characters)"


def _json_inside(value: Any) -> Any:
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return None
    try:
        return parse(value.encode())
    except (ValueError, RecursionError):
        return None


def _lone(node: Any) -> bool:
    return isinstance(node, str) and any("\ud800" <= c <= "\udfff" for c in node)


def _places(node: Any, path: tuple[int, ...]) -> Any:
    yield path
    if isinstance(node, list):
        for at in range(len(node)):
            yield from _places(_at(node, at), (*path, at))


def _named(tree: Any, path: tuple[int, ...]) -> Any:
    for at in path:
        yield tree[at][0] if isinstance(tree, Members) else at
        tree = _at(tree, at)


def _at(holder: Any, at: int) -> Any:
    return holder[at][1] if isinstance(holder, Members) else holder[at]


def _put(holder: Any, at: int, value: Any) -> None:
    holder[at] = (holder[at][0], value) if isinstance(holder, Members) else value
