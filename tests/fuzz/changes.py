"""Changes of the tree by damage or an attacker: contents, names, links, special files, moves."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stratalog.partitions.paths import base_name, folder_of
from tests.fuzz import mutations_of_metadata as metadata
from tests.fuzz.mutations import EMPTY, Specimen, Specimens, description_name, last_batch, mutate_content
from tests.fuzz.mutations_of_parquet import bomb
from tests.fuzz.paths import ROOTS


@dataclass(slots=True)
class Change:
    """The description of a change in the tree."""

    kind: str
    """The kind of the file and of the change."""
    root: str
    """The root of the changed file; empty if it is outside of all roots."""
    what: str
    topic: str | None = None
    forged: bool = False
    """Whether the new content looks as valid as the original."""
    metadata: bool = False
    """Whether the change forges the metadata, whose content decides for all drivers."""
    paths: set[str] = field(default_factory=set)
    """The changed files."""


Maker = Callable[[random.Random, Path, Specimens, Specimen], Change]


def put(path: Path, data: bytes) -> None:
    """Write a new file with the times of the old one. (The old one is a hard link, and stays unchanged
    elsewhere.)"""
    before = path.lstat() if os.path.lexists(path) else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    if before is not None:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _change(specimen: Specimen, how: str, what: str, *paths: str, **more: bool) -> Change:
    place = specimen.place
    return Change(
        f"{place.kind}: {how}",
        place.root,
        f"{specimen.path}: {what}",
        place.topic,
        **more,
        paths={*paths, specimen.path},
    )


def content(rng: random.Random, now: Path, specimens: Specimens, specimen: Specimen) -> Change:
    mutated = mutate_content(rng, specimen, specimens)
    path = specimen.path
    if specimen.place.kind == "description" and rng.random() < 0.8:
        (now / path).unlink()
        path = description_name(path, mutated.data)
    put(now / path, mutated.data)
    forges = mutated.forged and specimen.place.kind.startswith("metadata")
    forged = mutated.forged or specimen.place.kind == "foreign file"  # no checksum of stratalog covers its bytes
    return _change(specimen, "content", mutated.what, path, forged=forged, metadata=forges)


def unfinished_batch(rng: random.Random, now: Path, specimens: Specimens, specimen: Specimen) -> Change:
    """Add an uncommitted batch after the last one on one voter."""
    root = rng.choice(ROOTS[:3])
    last, name = last_batch(specimens, root)
    epoch = rng.choice((name.epoch + 1, name.epoch + 1, name.epoch, name.epoch + 1000, 10**9, 9_999_999_999))
    made = metadata.odd_batch(rng, last.data, epoch)
    start = metadata.read_values(made.data)[0]["base_offset"]
    path = f"{folder_of(last.path)}/{start:020d}.{epoch:010d}.parquet"
    put(now / path, made.data)
    near = epoch <= name.epoch + 1000
    return Change("metadata batch: unfinished", root, made.what, None, True, near, {path})


def odd_name(rng: random.Random, now: Path, specimens: Specimens, specimen: Specimen) -> Change:
    """Give the file another name, in addition or instead: with a much greater number, more digits, another suffix,
    or a foreign name."""
    folder, name = folder_of(specimen.path), base_name(specimen.path)
    numbers = list(re.finditer(r"[0-9]{5,20}", name))
    new, how = name, "odd number"
    if numbers and rng.random() < 0.8:
        found = rng.choice(numbers)
        width, value = len(found[0]), int(found[0])
        number = rng.choice(
            (value + 1, value + 2, value + 1000, 10**width - 1, 2**31, 2**63 - 1, 0, 10**width, 10**200)
        )
        new = name[: found.start()] + f"{number:0{width}d}" + name[found.end() :]
    else:
        how = "odd name"
        odd = (
            "x",
            ".x",
            name + ".tmp",
            name.upper(),
            "\udcff\udcfe",
            "a\nb\x1b[2J",
            "9" * 240,
            " ",
            "-",
            name + " ",
            "%2e%2e",
        )
        new = rng.choice((*odd, re.sub("[0-9]", "٣", name)[:100]))
    new = new if len(os.fsencode(new)) <= 255 else new[-100:]
    target = now / folder / new
    if not os.path.lexists(target) and new != name:
        target.write_bytes(specimen.data)
        os.utime(target, ns=((now / specimen.path).stat().st_mtime_ns,) * 2)
    if rng.random() < 0.3:
        (now / specimen.path).unlink()
        how += ", renamed"
    forges = specimen.place.kind.startswith("metadata")
    return _change(
        specimen, how, f"as {new!r}", f"{folder}/{new}", forged=True, metadata=forges and how == "odd number"
    )


def gone(rng: random.Random, now: Path, specimens: Specimens, specimen: Specimen) -> Change:
    """Delete the file."""
    (now / specimen.path).unlink()
    return _change(specimen, "gone", "gone", forged=specimen.place.kind not in EMPTY)


def moved(rng: random.Random, now: Path, specimens: Specimens, specimen: Specimen) -> Change:
    """Replace the content by that of another file of the same kind, from another replica, partition, epoch or
    broker.
    """
    other = specimens.like(rng, specimen)
    put(now / specimen.path, other.data)
    forges = specimen.place.kind.startswith("metadata")
    return _change(specimen, "another's content", f"content of {other.path}", forged=forges, metadata=forges)


def special(rng: random.Random, now: Path, specimens: Specimens, specimen: Specimen) -> Change:
    """Replace the file by a link, a FIFO, a socket, a device or a folder."""
    path = now / specimen.path
    path.unlink()
    how = rng.choice(
        ("link to victim", "link to nothing", "link to itself", "link away", "FIFO", "folder", "device", "zero")
    )
    match how:
        case "link to victim":
            path.symlink_to(now / "victim" / "00000000000000000000.0000000001.parquet")
        case "link to nothing":
            path.symlink_to(now / "victim" / "nothing")
        case "link to itself":
            path.symlink_to(path.name)
        case "link away":
            path.symlink_to(rng.choice(("/dev/zero", "/proc/self/mem", "/dev/full")))
        case "FIFO":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
            (path / "x").write_bytes(b"")
        case _:
            _device(path, (1, 5) if how == "zero" else (1, 3))
    return _change(specimen, "special", how)


def _device(path: Path, number: tuple[int, int]) -> None:
    try:
        os.mknod(path, 0o20666, os.makedev(*number))
    except PermissionError:
        path.symlink_to("/dev/zero")


def linked_folder(rng: random.Random, now: Path, specimens: Specimens, specimen: Specimen) -> Change:
    """Replace a parent folder by a link: to the victim, to a folder of another root, to itself, or to a missing
    path."""
    parts = specimen.path.split("/")
    depth = rng.randrange(2, len(parts)) if len(parts) > 2 else 1
    folder = "/".join(parts[:depth])
    if depth == 1:
        return special(rng, now, specimens, specimen)
    if rng.random() < 0.2:
        folder = f"{parts[0]}/.staging"
        (now / folder).mkdir(exist_ok=True)
    target = rng.choice(("victim", "victim/deep", "nothing", "itself", "another root"))
    away = f"{parts[0]}/moved-away"
    (now / folder).rename(now / away)
    match target:
        case "nothing":
            (now / folder).symlink_to(now / "nowhere")
        case "itself":
            (now / folder).symlink_to(base_name(folder))
        case "another root":
            other = rng.choice([root for root in ROOTS if root != parts[0]])
            (now / folder).symlink_to(now / other)
        case _:
            (now / folder).symlink_to(now / target)
    change = _change(specimen, "linked folder", f"{folder} -> {target}")
    change.topic = None
    return change


def sparse(rng: random.Random, now: Path, specimens: Specimens, specimen: Specimen) -> Change:
    """Add gigabytes of zeros before the content, after it, or in place of it."""
    path, size = now / specimen.path, rng.choice((1 << 30, 3 << 30))
    before = path.stat()
    path.unlink()
    with path.open("wb") as file:
        how = rng.choice(("before", "after", "instead"))
        if how == "after":
            file.write(specimen.data)
        file.truncate(size)
        if how == "before":
            file.seek(size - len(specimen.data))
            file.write(specimen.data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return _change(specimen, "sparse", f"{size} bytes of nothing {how}")


def strangers(rng: random.Random, now: Path, specimens: Specimens, specimen: Specimen) -> Change:
    """Add foreign files and folders beside the file."""
    folder = now / folder_of(specimen.path)
    for number in range(rng.choice((1, 10, 300))):
        (folder / f"stranger {number}\x1b[1m").write_bytes(b"x")
    (folder / "0.1").mkdir(exist_ok=True)
    (folder / "_delta_log").mkdir(exist_ok=True)
    (folder / "\udcff").mkdir(exist_ok=True)
    change = _change(specimen, "strangers", "strangers beside it")
    change.paths.clear()
    return change


def bombed(rng: random.Random, now: Path, specimens: Specimens, specimen: Specimen) -> Change:
    """Replace a data file by one of some kilobytes whose records take gigabytes."""
    specimen = rng.choice(specimens.by_kind[rng.choice(BOMBED)])
    mutated = bomb(rng, specimen.data)
    put(now / specimen.path, mutated.data)
    forges = specimen.place.kind.startswith("metadata")
    return _change(specimen, "bomb", mutated.what, forged=True, metadata=forges)


BOMBED = (
    "segment",
    "segment",
    "remote segment",
    "state segment",
    "snapshot",
    "metadata batch",
    "metadata snapshot",
)
CONTENT: Sequence[tuple[Maker, int]] = (
    (content, 60),
    (unfinished_batch, 5),
    (odd_name, 10),
    (gone, 4),
    (moved, 5),
    (special, 6),
    (linked_folder, 5),
    (sparse, 3),
    (bombed, 2),
    (strangers, 2),
)


def draw_change(rng: random.Random, now: Path, specimens: Specimens) -> Change:
    """Apply a random change to the tree."""
    specimen = specimens.draw(rng, ("cluster file",))
    (maker,) = rng.choices([one for one, _ in CONTENT], [weight for _, weight in CONTENT])
    if maker is content and specimen.place.kind in EMPTY:
        maker = odd_name
    if not specimen.place.root and maker in (odd_name, gone, special, linked_folder, sparse, strangers):
        maker = content  # operators read the files that operators write
    return maker(rng, now, specimens, specimen)
