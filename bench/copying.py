"""Replicate, and tier to a folder, compared with ``cp`` + fsync of the same files; and the cost of checking the
copies."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.bench import Bench, BenchCluster, copy_durably, data_files, size_of
from bench.measuring import in_turn, seconds_of, timed
from bench.table import Line, speed_line
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.storage import COPY_THREADS
from stratalog.partitions.runner import ThreadRunner, values
from stratalog.partitions.store.local_copy import copy_file

AT_LEAST = 0.8
STEP_BYTES = 16 * 1024 * 1024
LOST = (
    "The members leave the ISR, receive everything, and join again: three rounds instead of one, and three "
    "commits instead of none."
)
CHECKS = (
    "The cost of the checks: with them, every byte passes through this process, which computes a CRC-32; the "
    "kernel's copy_file_range copies without checks."
)


def replicate(bench: Bench) -> list[Line]:
    """Copy all partitions in parallel, then one: to members of the ISR that have nothing yet, and to members that
    have lost everything."""
    lines = []
    for partitions in dict.fromkeys((bench.options.partitions, 1)):
        made = bench.filled(partitions)
        bench.say(f"replicate, {partitions} partition(s)")
        size = size_of(data_files(made.replicas(leading=True)))

        def replicate_all(made: BenchCluster = made, size: int = size) -> float:
            for folder in made.replicas(leading=False):
                shutil.rmtree(folder)
            return _checked(made.cluster.replicate, "copied_bytes", size)

        def replicate_behind(made: BenchCluster = made, again: Callable[[], float] = replicate_all) -> float:
            for folder in made.replicas(leading=True):
                for register in folder.glob("*.hw"):  # as after the append: no replication is proved yet
                    register.unlink()
            return again()

        ours, peer, lost = in_turn(replicate_behind, partial(_copied, bench, made), replicate_all)
        what = "1 partition" if partitions == 1 else f"{partitions} partitions"
        lines.append(speed_line(f"replicate, {what}", size, ours, peer, AT_LEAST))
        lines.append(
            speed_line(f"    replicate, {what}, to members that have lost it", size, lost, peer, note=LOST)
        )
        lines.append(_checks(bench, made, size))
    return lines


def tier(bench: Bench) -> list[Line]:
    """Tier all partitions to a remote tier that holds nothing yet."""
    made = bench.filled(bench.options.partitions)
    made.tiered()
    bench.say("tier to a folder")
    made.cluster.replicate().raise_for_failures()  # only what is below the high watermark is tiered
    size = size_of(data_files(made.replicas(leading=True)))

    def tier_all() -> float:
        for folder in made.remote_folders():
            shutil.rmtree(folder)
        return _checked(made.cluster.tier, "uploaded_bytes", size)

    ours, peer = in_turn(tier_all, partial(_copied, bench, made))
    return [speed_line("tier to a folder", size, ours, peer, AT_LEAST)]


def _copied(bench: Bench, made: BenchCluster) -> float:
    """The seconds of the peer, with the files of all leaders."""
    folder = bench.folder / "copy"
    files: dict[Path, list[Path]] = {}
    for number, replica in enumerate(made.replicas(leading=True)):
        target = folder / str(number)
        target.mkdir(parents=True)
        files[target] = data_files([replica])
    os.sync()
    seconds = seconds_of(lambda: copy_durably(files))
    shutil.rmtree(folder)
    return seconds


def _checks(bench: Bench, made: BenchCluster, size: int) -> Line:
    """The copies of ``replicate`` alone, in as many threads, compared with copies by the kernel, which does not
    inspect the bytes.
    """
    files = data_files(made.replicas(leading=True))
    folder = bench.folder / "checks"

    def copied(copy: Callable[[int, int, int], object]) -> float:
        folder.mkdir()

        def one(numbered: tuple[int, Path]) -> None:
            number, file = numbered
            with file.open("rb") as source, (folder / str(number)).open("wb") as target:
                copy(source.fileno(), target.fileno(), file.stat().st_size)
                os.fsync(target.fileno())

        os.sync()
        seconds = seconds_of(lambda: values(ThreadRunner(COPY_THREADS).run(one, list(enumerate(files)))))
        shutil.rmtree(folder)
        return seconds

    checked, unchecked = in_turn(lambda: copied(copy_file), lambda: copied(_copy_unseen))
    return speed_line("    copies alone: checked; by the kernel, unchecked", size, checked, unchecked, note=CHECKS)


def _copy_unseen(source: int, target: int, size_bytes: int) -> None:
    done = 0
    while done < size_bytes:
        moved = os.copy_file_range(source, target, min(STEP_BYTES, size_bytes - done), done, done)
        # The disk starts to write, as it does for our copies.
        os.posix_fadvise(target, done, moved, os.POSIX_FADV_DONTNEED)
        done += moved


def _checked(operation: Callable[[], Report], total: str, expected: int) -> float:
    """The seconds of an operation, which must have moved all of the bytes."""
    os.sync()  # do not wait for earlier writes of other programs
    seconds, report = timed(operation)
    report.raise_for_failures()
    if report.totals[total] != expected:
        raise AssertionError(f"{report.operation} moved {report.totals[total]} of {expected} bytes")
    return seconds
