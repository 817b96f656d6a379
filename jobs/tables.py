"""Tables of jobs: their width, and the order of their rows."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import TextIO

from stratalog import Report
from stratalog.engine.driver.report import Value
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.spelling import did_you_mean

_LAST = ":desc"


def add_sort(parser: argparse._ActionsContainer) -> None:
    """``--sort COLUMN``."""
    parser.add_argument(
        "--sort",
        metavar="COLUMN",
        help="sort the rows by COLUMN; COLUMN:desc sorts the largest first",
    )


def arranged(report: Report, given: argparse.Namespace) -> Report:
    """Return the report with its rows sorted by ``--sort``, and missing values last. Without the option, return
    the report unchanged.

    Raises: InvalidCallError for a column that the table does not have.
    """
    wanted = getattr(given, "sort", None)
    if wanted is None or not (report.rows or report.columns):
        return report
    column = wanted.removesuffix(_LAST)
    if column not in report.columns:
        hint = did_you_mean(column, report.columns) or f"; the columns are {', '.join(report.columns)}"
        raise InvalidCallError(f"--sort {wanted}: the table has no column {column!r}{hint}")

    def known(row: Mapping[str, Value]) -> bool:
        return row.get(column) is not None

    def key(row: Mapping[str, Value]) -> tuple[bool, Value]:
        value = row[column]
        return (True, value) if isinstance(value, str) else (False, value)

    rows = sorted(filter(known, report.rows), key=key, reverse=wanted.endswith(_LAST))
    return replace(report, rows=[*rows, *(row for row in report.rows if not known(row))])


def terminal_width(stream: TextIO | None) -> int | None:
    """Return the width of the stream's terminal in columns; None for a file or a pipe, whose lines are never
    cut."""
    if stream is None or not stream.isatty():
        return None
    return shutil.get_terminal_size((0, 0)).columns or None
