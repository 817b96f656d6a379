"""The command-line arguments of jobs, and the errors of an invalid call (exit status 2).

This module only converts texts to values; it opens nothing. The functions for types raise
``argparse.ArgumentTypeError``, which argparse prints on one line.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from stratalog.engine.config.file_place import CREDENTIALS_VARIABLE
from stratalog.engine.config.key_source import KEY_VARIABLE
from stratalog.engine.reading.positions import SPECS, FirstAt, Spec, named_or_time, spec_of, time_of
from stratalog.jobs.tables import add_sort
from stratalog.partitions.amounts import parse_size
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.runner import RUNNERS, SPARK
from stratalog.partitions.secret_files import read_secret
from stratalog.partitions.spelling import did_you_mean

CLUSTER_VARIABLE = "STRATALOG_CLUSTER"
USUAL_CLUSTER_FILE = "conf/cluster.toml"
_CHOICE = re.compile(r"invalid choice: '(?P<given>.*)' \(choose from (?P<known>.*)\)$", re.DOTALL)
"""A message of argparse."""

_PATH = re.compile(r"/|\.\w+$")
"""Matches a file name's ending, or a slash in a path; the names of most topics have neither."""

_COMMAND = "COMMAND"
_COMMON = "common options"
_FIRST_AT = "first-at:"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_EPILOG = """\
On a Spark cluster, or with all of Spark's settings:
  spark-submit --properties-file {conf} {script} ...
On this machine, {here}:
  stratalog {name} ...
Exit status: 0 success, 1 something failed (see the report), 2 the call was wrong, and nothing was changed."""

_HERE = {
    "threads": "in threads of this process and without a JVM (--master local[*]: on Spark)",
    "session": "in its own Spark session",
    "driver": "without a JVM",
}


class _JobParser(argparse.ArgumentParser):
    """A parser whose errors suggest what the user may have meant. Parsers of subcommands also have this class."""

    _UNKNOWN = "unrecognized arguments: "
    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = sys.argv[1:] if args is None else list(args)
        given, rest = super().parse_known_args(args, namespace)
        used = {
            action.dest: action.option_strings[-1]
            for action in self._actions
            if action.option_strings and getattr(given, action.dest, action.default) != action.default
        }
        given.used = {**getattr(given, "used", {}), **used}
        return given, rest

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown arguments, without repeating the values of options and configs: they may be passwords."""
        given, rest = self.parse_known_args(args, namespace)
        if rest:
            parts = (word.partition("=") for word in rest)
            self.error(self._UNKNOWN + " ".join(f"{name}=..." if equals else name for name, equals, _ in parts))
        return given

    def format_help(self) -> str:
        self._common_last()
        return super().format_help()

    def format_usage(self) -> str:
        self._common_last()
        return super().format_usage()

    def _common_last(self) -> None:
        """Move the common options after the job's own."""
        common = common_of(self)
        self._action_groups.sort(key=lambda group: group is common)
        self._actions.sort(key=lambda action: action in common._group_actions)

    def error(self, message: str) -> NoReturn:
        hint = ""
        options = sorted(self._options())
        if message.endswith(f"required: {_COMMAND}"):
            commands = next(action.choices for action in self._actions if action.metavar == _COMMAND)
            hint = f"; {_COMMAND} is one of {', '.join(commands or ())}"
        elif "required" in message:  # argparse reports this before unknown options
            words = (word.partition("=")[0] for word in self._words if word.startswith("--"))
            unknown = [word for word in words if word not in options]
            hints = (self._without_option(word) or did_you_mean(word, options, 0.7) for word in unknown)
            hint = next((hint for hint in hints if hint), "") or self._path_of_input(message)
        if (choice := _CHOICE.search(message)) is not None:
            hint = did_you_mean(choice["given"], re.findall(r"[\w-]+", choice["known"]))
        if message.startswith(self._UNKNOWN):
            word = message.removeprefix(self._UNKNOWN).split(" ")[0]
            if word.startswith("-"):
                word = word.partition("=")[0]
                near = self._elsewhere(word) or did_you_mean(word, options, 0.7)
                hint = self._without_option(word) or near  # all options begin with dashes
            elif "--topics" in options:
                hint = "; name topics with --topics A,B"
        super().error(message + hint)

    def _without_option(self, word: str) -> str:
        """Return the hint for ``--topic t``, if the parser takes the topic as a positional argument."""
        positional = {action.dest.rstrip("s"): action for action in self._actions if not action.option_strings}
        action = positional.get(word.removeprefix("--").rstrip("s"))
        return "" if action is None else f"; give {action.metavar} as an argument, without an option"

    def _elsewhere(self, word: str) -> str:
        """Return the hint for an option of another command of the job."""
        commands = next((action.choices for action in self._actions if isinstance(action.choices, dict)), {})
        names = [name for name, command in commands.items() if word in command._options()]
        if len(names) == 1:
            return f"; the command {names[0]} has this option"
        return f"; the commands {', '.join(names)} have this option" if names else ""

    def _path_of_input(self, message: str) -> str:
        """Return the hint for an input path that was given without ``--input``."""
        path = next((word for word in self._words if not word.startswith("-") and _PATH.search(word)), None)
        return f"; did you mean --input {path}?" if message.endswith("required: --input") and path else ""

    def _options(self) -> set[str]:
        """Return the options of this parser and of its subcommands."""
        found: set[str] = set()
        for action in self._actions:
            found |= set(action.option_strings)
            if isinstance(action.choices, dict):
                found.update(*(command._options() for command in action.choices.values()))
        return found


def job_parser(name: str, description: str, runs: str = "threads") -> argparse.ArgumentParser:
    """Return a parser with the options of every job: ``--cluster``, ``--cluster-key-file``, ``--credentials``,
    ``--json``. ``runs`` is the place where the work runs if spark-submit did not start the job: in ``threads``, in
    a Spark ``session``, or in the ``driver``.
    """
    parser = _JobParser(
        prog=called(name),
        description=description.replace("``", ""),
        epilog=_EPILOG.format(
            name=name,
            here=_HERE[runs],
            conf=_file("conf", "spark-defaults.conf"),
            script=_file("jobs", f"{name}.py"),
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    usual = os.environ.get(CLUSTER_VARIABLE) or USUAL_CLUSTER_FILE
    add_common(parser, {"cluster": usual, "cluster_key_file": None, "credentials": None, "json": False})
    if runs != "driver":
        common = common_of(parser)
        common.add_argument(
            "--master",
            metavar="URL",
            help="the Spark master, or a Spark Connect server (sc://HOST:PORT); under spark-submit use the "
            "--master of spark-submit",
        )
        common.add_argument(
            "--runner",
            choices=RUNNERS,
            default=SPARK,
            help="where the work runs: on executors of Spark (the default if the job has a session), or in "
            "threads of this process, for executors without access to the storage",
        )
    return parser


def called(name: str) -> str:
    """Return the command that started the job: ``stratalog tier``, ``python -m stratalog.jobs.tier``, or the path
    of the script, after ``spark-submit`` if that command runs the job.
    """
    main = sys.modules.get("__main__")
    spec, script = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name == f"stratalog.jobs.{name}":
        return f"python -m {spec.name}"
    if spec is None and script is not None and Path(script).name == f"{name}.py":
        return f"spark-submit {script}" if "PYSPARK_GATEWAY_PORT" in os.environ else script
    return f"stratalog {name}"


def _file(*parts: str) -> str:
    """Return the path of a file of this package, relative to the working directory if the file is below that
    directory."""
    path = Path(__file__).resolve().parent.parent.joinpath(*parts)
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def common_of(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Return the group of the options that all jobs share. The help lists this group last."""
    found = [group for group in parser._action_groups if group.title == _COMMON]
    return found[0] if found else parser.add_argument_group(_COMMON)


def add_common(parser: argparse.ArgumentParser, defaults: Mapping[str, object] | None = None) -> None:
    """Add the arguments of every job. The parser of a subcommand gets no ``defaults``, because they would override
    arguments given before the subcommand.
    """
    common = common_of(parser)
    defaults = defaults or dict.fromkeys(("cluster", "cluster_key_file", "credentials", "json"), argparse.SUPPRESS)
    common.add_argument(
        "--cluster",
        metavar="FILE",
        default=defaults["cluster"],
        help=f"path or address of the cluster file (default: ${CLUSTER_VARIABLE}, or {USUAL_CLUSTER_FILE})",
    )
    common.add_argument(
        "--cluster-key-file",
        metavar="FILE",
        default=defaults["cluster_key_file"],
        help=f"file with the cluster key (default: the key in ${KEY_VARIABLE})",
    )
    common.add_argument(
        "--credentials",
        metavar="MODULE:FUNCTION",
        default=defaults["credentials"],
        help=f"provider of storage credentials, called in each process (default: ${CREDENTIALS_VARIABLE})",
    )
    common.add_argument(
        "--json",
        action="store_true",
        default=defaults["json"],
        help="print the report as one JSON object, the last line of standard output, instead of a table",
    )


def commands_of(parser: argparse.ArgumentParser) -> Callable[..., argparse.ArgumentParser]:
    """Return a function that adds a subcommand, given its name and description, and returns the parser of the
    subcommand. With ``reads``, the subcommand changes nothing, and has ``--sort``. Each subcommand has the options
    of every job, and ``--dry-run``. ``command`` in the namespace is the subcommand's name.
    """
    commands = parser.add_subparsers(dest="command", required=True, metavar=_COMMAND)

    def command(name: str, doc: str, *, reads: bool = False) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=doc, description=doc, allow_abbrev=False)
        add_common(added)
        add_dry_run(
            common_of(added), "no effect: this command only reads" if reads else "check the call; change nothing"
        )
        if reads:
            add_sort(common_of(added))
        return added

    return command


def add_every(
    parser: argparse._ActionsContainer,
    doc: str = "run again TIME (such as 30s) after the end of each run, until interrupted",
) -> argparse._MutuallyExclusiveGroup:
    """Add ``--once`` and ``--every TIME``. Returns their group."""
    often = parser.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="run once (the default)")
    often.add_argument("--every", metavar="TIME", type=duration, help=doc)
    return often


def add_dry_run(parser: argparse._ActionsContainer, doc: str = "print the plan; change nothing") -> None:
    """``--dry-run``."""
    parser.add_argument("--dry-run", action="store_true", help=doc)


def add_yes(parser: argparse._ActionsContainer) -> None:
    """``--yes``, for jobs that ask before an irreversible step."""
    parser.add_argument(
        "--yes", action="store_true", help="do not ask for confirmation; required without a terminal"
    )


# --------------------------------------------------------------- options that do not go together

Rows = Sequence[tuple[str, ...]]
"""Options by their names in the namespace. Each row is a rule for its first option. ``used`` in the namespace maps
the options that differ from their defaults to their option strings.
"""


def check_options(given: argparse.Namespace, *, needs: Rows = (), bars: Rows = ()) -> None:
    """Check rules between options. In a row of ``needs``, the first option requires one of the other options. In a
    row of ``bars``, it excludes all the other options.

    Raises: InvalidCallError for the first rule that is violated.
    """
    used: Mapping[str, str] = given.used
    for option, *others in needs:
        if option in used and used.keys().isdisjoint(others):
            raise InvalidCallError(f"{used[option]} needs {' or '.join(map(option_of, others))}")
    for option, *others in bars:
        for other in others if option in used else ():
            if other in used:
                raise InvalidCallError(f"{used[option]} and {used[other]} cannot be used together")


def option_of(name: str) -> str:
    """Return the option of a parameter: ``--throttle`` for ``throttle_bytes_per_s``."""
    word = re.sub(r"(?<=.)(_bytes_per_s|_s|_ms)$", "", name)
    return f"--{word.replace('_', '-')}"


# ----------------------------------------------------------------------------- words to values


def name(text: str) -> str:
    """Check that a text is not empty. (An empty text usually comes from an unset shell variable.)"""
    if not text:
        raise argparse.ArgumentTypeError("give a name")
    return text


def separator(text: str) -> str:
    """A text that is not empty, with the escapes ``\\t``, ``\\n``, ``\\0``, ``\\x1f`` and ``\\\\`` resolved."""
    plain = {"t": "\t", "n": "\n", "0": "\0", "\\": "\\"}
    escape = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([tn0\\]))")
    return escape.sub(lambda found: chr(int(found[1], 16)) if found[1] else plain[found[2]], name(text))


def names(text: str) -> list[str]:
    """``a,b`` as a list of names. An empty name is an error."""
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r}: give names separated by commas")
    return found


def numbers(text: str) -> list[int]:
    """``1,2`` as a list of numbers of 0 or more."""
    found = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in found):
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers of 0 or more, separated by commas")
    return [int(part) for part in found]


def number(text: str) -> int:
    """A number of 0 or more."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of 0 or more")
    return int(text)


def whole_number(text: str) -> int:
    """A number that may be negative."""
    if not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number")
    return int(text)


def count(text: str) -> int:
    """A number of 1 or more."""
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of 1 or more")
    return int(text)


def duration(text: str) -> float:
    """A duration in seconds, above 0, from ``500ms``, ``30s``, ``5m``, ``1h``, or plain seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", text.strip(), re.ASCII)
    seconds = 0.0 if found is None else float(found[1]) * _SECONDS[found[2] or "s"]
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: write 30s, 500ms, 5m or 1h")
    return seconds


def size(text: str) -> int:
    """A size in bytes, at least 1, from ``200MB``, ``1.5GiB``, or plain bytes."""
    with _refused():
        found = parse_size(text)
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give at least 1 byte")
    return found


def rate(text: str) -> int:
    """Bytes per second, from a size such as ``50MiB`` or ``50MiB/s``."""
    return size(text.removesuffix("/s"))


def text_or_file(text: str) -> str:
    """The text itself, or for ``@FILE`` the content of that file."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text[1:]} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text[1:]} is not a UTF-8 text file: {error}") from error


def iso_duration(text: str) -> timedelta:
    """An ISO 8601 duration of days, hours, minutes and seconds: ``P7D``, ``PT1H30M``."""
    found = re.fullmatch(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", text, re.ASCII)
    if found is None or not any(found.groups()):
        raise argparse.ArgumentTypeError(f"{text!r}: write durations as P7D, PT1H30M or P1DT12H")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than any log") from error


def pair(text: str) -> tuple[str, str]:
    """``key=value``; the value may be empty, and may contain equals signs."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise argparse.ArgumentTypeError("write key=value")  # the text may be a password
    return key.strip(), value


def pair_or_file(text: str) -> tuple[str, str]:
    """``key=value``, or ``key=@FILE`` for the text of a file, without a line end after it. All users of a machine
    can read command lines, so passwords belong in files.
    """
    key, value = pair(text)
    if not value.startswith("@"):
        return key, value
    text = read_secret(
        f"the file of {key}",
        value[1:],
        partial(Path.read_text, encoding="utf-8"),
        argparse.ArgumentTypeError,
        not_text="it is not UTF-8",
    )
    return key, text.removesuffix("\n")


class Pairs(argparse.Action):
    """Collects the values of a repeated ``K=V`` option in a dictionary."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, pair: Any, option: str | None = None) -> None:
        key, value = pair
        found = getattr(namespace, self.dest) or {}
        if key in found:
            parser.error(f"argument {option}: {key} is given twice")
        setattr(namespace, self.dest, {**found, key: value})


PAIRS: Mapping[str, Any] = {"metavar": "K=V", "type": pair, "action": Pairs}
"""The syntax of a repeated ``K=V`` option."""


def time(text: str) -> datetime:
    """An ISO 8601 time, in UTC unless it names a zone."""
    with _refused():
        return time_of(text, "the text")


def position(text: str) -> Spec:
    """An argument of ListOffsets: a named position, or the first record at or after a time."""
    with _refused():
        return spec_of(text.removeprefix(_FIRST_AT), "the text")


def bound(text: str) -> int | dict[int, int] | OffsetSpec | FirstAt | datetime:
    """The start or end of a read: an offset (``1000``), offsets by partition (``0:1000,3:20``), a named
    position, a time, or the first record at or after a time (``first-at:2013-06-01``).
    """
    if text.isascii() and text.isdigit():
        return int(text)
    if re.fullmatch(r"\d+:\d+(,\d+:\d+)*", text, re.ASCII):
        return {int(key): int(value) for key, _, value in (part.partition(":") for part in text.split(","))}
    with _refused():
        if text.startswith(_FIRST_AT):
            return FirstAt(text.removeprefix(_FIRST_AT))
        takes = f"an offset, offsets by partition such as 0:1000,3:20, {SPECS}, or {_FIRST_AT}TIME"
        return named_or_time(text, "the text", takes)


@contextmanager
def _refused() -> Iterator[None]:
    """Convert an InvalidCallError in the block to ArgumentTypeError."""
    try:
        yield
    except InvalidCallError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
