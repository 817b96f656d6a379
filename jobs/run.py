"""The frame of every job: arguments, cluster, session, report, exit status.

    0  success; a job that repeats itself (--every) has finished its run after a signal
    1  something failed: the report's failures, or ``ERROR CODE: message`` on standard error
    2  the call was wrong and nothing was changed: errors of argparse, kinds of InvalidCallError, errors of Spark's
       analyser, and formats that Spark does not have
    130, 143  SIGINT or SIGTERM interrupted the job
A traceback is a bug of stratalog. If the reader of the output closes it, as ``| head`` does, a job that prints
records ends. Any other job keeps its exit status. With ``--json`` the last line of standard output is one report
object, also after failures. (spark-submit prints the driver's standard error on its own standard output, before
that line.)

Errors in the call that can be found without a JVM are reported before a JVM starts.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import stratalog
from stratalog import Failure, OperationFailedError, Report
from stratalog.engine.config.key_source import KeySource, key_file, key_of_environment
from stratalog.engine.driver.origin import origin
from stratalog.engine.driver.report import utc_text
from stratalog.jobs.arguments import job_parser
from stratalog.jobs.colours import coloured, in_colour
from stratalog.jobs.ending import Terminated, at_once
from stratalog.jobs.progress import terminal_progress
from stratalog.jobs.tables import arranged, terminal_width
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import EnvironmentUnusableError, InvalidCallError, StratalogError
from stratalog.partitions.paths import METADATA_TOPIC
from stratalog.partitions.printable import first_line, printable
from stratalog.partitions.runner import SPARK
from stratalog.partitions.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL_DONE, FAILED, BAD_CALL, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143


class Job:
    """One call of a job: its arguments and progress, and its cluster and session, which are created on first
    use."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name = name
        self.arguments = arguments
        self.progress = terminal_progress()
        self._opened: stratalog.Cluster | None = None
        self._started: SparkSession | None = None

    @property
    def key(self) -> KeySource:
        """The source of the cluster key: the file that the options name, or the environment."""
        path = self.arguments.cluster_key_file
        return key_of_environment if path is None else key_file(path)

    def cluster(self) -> stratalog.Cluster:
        """Return the cluster, with its work in threads of this process. Checks that the topics of the call exist.

        Raises: see ``Cluster.open``; UnknownTopicOrPartitionError for a topic that does not exist.
        """
        if self._opened is None:
            cluster = stratalog.Cluster.open(
                self.arguments.cluster,
                progress=self.progress,
                cluster_key=self.key,
                credentials=self.arguments.credentials,
            )
            warn(cluster.file.warnings)
            named = getattr(self.arguments, "topics", None) or ()
            image = cluster.image if named else None
            for name in named:
                assert image is not None
                # the metadata log is not a topic of the metadata, so each job decides whether it accepts its name
                if name != METADATA_TOPIC:
                    image.topic(name)
            self._opened = cluster
        return self._opened

    def on_spark(self, settings: Mapping[str, str] | None = None) -> stratalog.Cluster:
        """Return the cluster, with its work on executors. Starts a session with ``settings`` if no session is
        active.

        Raises: see ``cluster``; EnvironmentUnusableError.
        """
        cluster = self.cluster()
        return cluster.using(self.session(settings), self.arguments.runner)

    def on_workers(self) -> stratalog.Cluster:
        """Return the cluster. Its work runs on executors if the caller uses Spark (spark-submit, ``--master``, a
        session in this process), and did not give ``--runner threads``. In all other cases, the work runs in
        threads of this process.

        Raises: see ``on_spark``.
        """
        spark = under_spark_submit() or self.arguments.master is not None or active_session() is not None
        return self.on_spark() if spark and self.arguments.runner == SPARK else self.cluster()

    def session(self, settings: Mapping[str, str] | None = None) -> SparkSession:
        """Return the session of this process, or a new session with ``settings``. Raises:
        EnvironmentUnusableError."""
        running = active_session()
        if running is not None:
            return running
        try:
            from stratalog.jobs.session import spark_session
        except ModuleNotFoundError as error:
            raise EnvironmentUnusableError(
                f"{self.name} needs Spark, but {error.name} is not installed: pip install 'stratalog[spark]'"
            ) from error
        self._started = spark_session(
            f"stratalog {self.name}",
            master=getattr(self.arguments, "master", None),
            roots=self.cluster().file.roots,
            settings=settings,
        )
        return self._started

    def confirm(self, what: str) -> None:
        """Ask on a terminal to confirm the irreversible step ``what``. Without a terminal, ``--yes`` is required.
        A dry run does not ask.

        Raises: InvalidCallError if the step is not confirmed.
        """
        if self.arguments.yes or self.arguments.dry_run:
            return
        if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise InvalidCallError(
                f"{what}: this cannot be undone, and there is no terminal to confirm it: give --yes, or --dry-run"
            )
        print(f"{what}: this cannot be undone. Type yes to continue: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() != "yes":
            raise InvalidCallError("not confirmed: nothing was changed")

    def show(self, report: Report) -> None:
        """Finish the progress bar, and show one of several reports, after the time in UTC. Raises:
        OutputClosedError.
        """
        self.progress.finish()
        with printing():
            self.print(report, f"{utc_text(SystemClock().now_ms() // 1000 * 1000)} ")

    def print(self, report: Report, stamp: str = "") -> None:
        """Print ``stamp`` and the table on standard output. With ``--json``, print the object instead, and also
        print the failures on standard error.
        """
        if not self.arguments.json:
            text = report.text(terminal_width(sys.stdout))
            print(stamp + (coloured(text) if in_colour(sys.stdout) else text))
            return
        for failure in report.failures:
            print(_line(f"FAILED {failure}"), file=sys.stderr, flush=True)
        self.print_object(report)

    def print_object(self, report: Report) -> None:
        """Print the object on standard output. It is the report with its time, cluster, version, job and run."""
        by, cluster = origin(), None if self._opened is None else self._opened.file.cluster_id
        now = utc_text(SystemClock().now_ms())
        print(report.to_json({"time": now, "cluster": cluster, "version": VERSION, "job": by.job, "run": by.run}))

    def show_line(self, report: Report) -> None:
        """Show only the headline, notes and failures of a report, without the rows of the table; otherwise like
        ``show``. Raises: OutputClosedError."""
        self.show(report if self.arguments.json else replace(report, rows=()))

    def close(self) -> None:
        """Release the terminal, and stop the session if this job started it."""
        self.progress.finish()
        if self._started is not None:
            self._started.stop()
            self._started = None


@dataclass(frozen=True, slots=True)
class JobMain:
    """A job, declared once: ``main`` of its module."""

    name: str
    description: str | None
    """The text of ``--help``: the module's docstring."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    body: Callable[[Job], Report]
    runs: str = "threads"
    """The argument ``runs`` of ``job_parser``."""
    prints: bool = False
    """Whether the body prints records itself. The table of the report then goes to standard error."""

    def parser(self) -> argparse.ArgumentParser:
        """The parser of the command line."""
        parser = job_parser(self.name, self.description or "", self.runs)
        self.add_arguments(parser)
        return parser

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Parse ``argv`` (None: the arguments of the process), run the body, and show its report. Returns the exit
        status; never raises a StratalogError.
        """
        try:
            arguments = self.parser().parse_args(argv)
        except SystemExit as stop:  # argparse has printed the error, but a caller in this process needs the status
            return int(stop.code or 0)
        job = Job(self.name, arguments)
        try:
            with at_once(), closing(job):  # closing the job prints its messages
                if getattr(arguments, "master", None) is not None and under_spark_submit():
                    raise InvalidCallError(
                        "under spark-submit, --master is an option of spark-submit: put it before the script"
                    )
                report = arranged(self.body(job), arguments)
        except OutputClosedError:
            return ALL_DONE
        except KeyboardInterrupt as stop:
            print(
                f"interrupted: {str(stop) or 'finished work is kept; run the job again to continue'}",
                file=sys.stderr,
            )
            return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED
        except OperationFailedError as error:
            report = error.report
        except Exception as error:
            explained = explain(error)
            if explained is None:
                raise
            code, message, status = explained
            print(f"ERROR {code}: {message}", file=sys.stderr, flush=True)
            if arguments.json:
                with suppress(OutputClosedError), printing():
                    job.print_object(Report(self.name, (), [Failure(self.name, code, message)]))
            return status
        with suppress(OutputClosedError), printing():
            if self.prints and not arguments.json:
                print(report, file=sys.stderr)
            else:
                job.print(report)
        return ALL_DONE if report.ok else FAILED


class OutputClosedError(Exception):
    """The reader of standard output has closed it, for example ``| head``."""


@contextmanager
def printing() -> Iterator[None]:
    """A context manager that flushes standard output at the end of its block. Raises: OutputClosedError if the
    reader closed standard output; later output is lost.
    """
    try:
        yield
        if sys.stdout is not None:  # None if standard output was closed from the start (``>&-``)
            sys.stdout.flush()
    except BrokenPipeError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise its last flush would fail again
        raise OutputClosedError from error


_NO_SUCH_FORMAT = "[DATA_SOURCE_NOT_FOUND]"
"""Whether an error means that a format is missing. A classic session raises this error as a py4j error, and Spark
Connect does not raise it as an AnalysisException.
"""


def explain(error: Exception) -> tuple[str, str, int] | None:
    """Return the code, one-line message, and exit status of an expected error; None for a bug of stratalog."""
    if isinstance(error, StratalogError):
        return error.code, _line(str(error)), BAD_CALL if isinstance(error, InvalidCallError) else FAILED
    if "pyspark" in sys.modules:
        from pyspark.errors import AnalysisException, PySparkException, PythonException

        from stratalog.engine.spark.aborted import why_aborted

        if isinstance(error, PySparkException) and not isinstance(error, PythonException):
            message = first_line(error)
            bad = isinstance(error, AnalysisException) or _NO_SUCH_FORMAT in message
            return "SPARK", _line(message), BAD_CALL if bad else FAILED
        if (why := why_aborted(error)) is not None:
            return "SPARK", _line(why), BAD_CALL if why.startswith(_NO_SUCH_FORMAT) else FAILED
    return None


def warn(warnings: Sequence[str]) -> None:
    """Print each warning as a line on standard error."""
    for warning in warnings:
        print(_line(f"WARNING: {warning}"), file=sys.stderr)


def under_spark_submit() -> bool:
    """Whether this process is the driver of spark-submit."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def active_session() -> SparkSession | None:
    """Return the session of this process, or None."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _line(text: str) -> str:
    return printable(" ".join(text.split()))
