"""``python -m tests.terminal`` records sessions on a real terminal (tmux), each a picture for docs/terminal.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "terminal"
WIDTH, HEIGHT = 100, 60

CLUSTER = """\
[cluster]
id = "flights"
remote = "remote"
voters = [1, 2, 3]
""" + "".join(f'\n[[brokers]]\nid = {n}\nlog_dir = "broker-{n}"\n' for n in (1, 2, 3))
FLIGHTS = "".join(
    f'{carrier}|{{"flight": {number}, "origin": "{origin}", "distance": {distance}}}\n'
    for carrier, number, origin, distance in (
        ("UA", 1545, "EWR", 1400),
        ("UA", 1714, "LGA", 1416),
        ("AA", 1141, "JFK", 1089),
        ("B6", 725, "JFK", 1576),
        ("DL", 461, "LGA", 762),
        ("B6", 507, "EWR", 1065),
    )
)

SESSIONS = {
    "create": [
        "stratalog format",
        "stratalog topics create flights --partitions 3 --replication-factor 3 --key STRING \\\n"
        '    --value "flight INT NOT NULL, origin STRING, distance INT" \\\n'
        "    --config remote.storage.enable=true --config segment.bytes=1",
        "stratalog topics describe flights | head -20",
        "stratalog topics create trips --value 'id STRNG'",
    ],
    "produce": [
        "head -2 flights.txt",
        "stratalog produce flights --input flights.txt --key-separator '|'",
        "stratalog produce flights --input flights.txt --key-separator '|' --producer a --sequence 1 > /dev/null",
        "stratalog produce flights --input flights.txt --key-separator '|' --producer a --sequence 1",
        """echo 'UA|{"flihgt": 1}' | stratalog produce flights --key-separator '|'""",
    ],
    "tail": [
        "stratalog tail flights -n 2",
        "stratalog tail flights -n 1 --format json 2>/dev/null",
        "stratalog tail flights -n 1 --partitions 0 --format hex 2>/dev/null",
    ],
    "maintain": ["stratalog maintain --every 5s", 12.0, "C-c", "stratalog describe"],
    "describe": [
        "mv broker-3 away; stratalog describe",
        "stratalog maintain > /dev/null 2>&1; stratalog topics list --under-replicated",
    ],
    "health": [
        "stratalog health",
        "mv away broker-3; stratalog maintain > /dev/null 2>&1; stratalog health | head -1",
    ],
    "delete": ["stratalog topics delete flights --dry-run", "stratalog topics delete flights", 6.0, "no"],
}
"""Commands. A pause in seconds applies to the command before it, which gets the next keys."""


class Terminal:
    """A terminal with a shell in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"
        self._env = {
            **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TMUX")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "STRATALOG_CLUSTER": "cluster.toml",
        }
        rc = folder / "bashrc"
        rc.write_text(f"PS1='$ '\nPROMPT_COMMAND='tmux -S {self._socket} wait-for -S prompt'\n")
        size = ["-x", str(WIDTH), "-y", str(HEIGHT)]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), f"bash --rcfile {rc}")
        self._prompt()

    def run(self, steps: list[str | float]) -> str:
        """The screen with its colours after these steps."""
        self._tmux("send-keys", "C-l")
        for at, step in enumerate(steps):
            if isinstance(step, float):
                time.sleep(step)
                continue
            named = step == "C-c"
            self._tmux("send-keys", *(() if named else ("-l",)), step)
            if not named:
                self._tmux("send-keys", "Enter")
            if not (at + 1 < len(steps) and isinstance(steps[at + 1], float)):
                self._prompt()
        return self._tmux("capture-pane", "-e", "-p").rstrip().removesuffix("$").rstrip()

    def close(self) -> None:
        """End the terminal."""
        self._tmux("kill-server")

    def _prompt(self) -> None:
        self._tmux("wait-for", "prompt")
        time.sleep(0.5)  # the terminal gets its size just before it is drawn

    def _tmux(self, *argv: str) -> str:
        called = ["tmux", "-S", str(self._socket), *argv]
        return subprocess.run(called, env=self._env, check=True, capture_output=True, text=True).stdout


def picture(screen: str, title: str) -> str:
    """An SVG that loads nothing."""
    console = Console(width=WIDTH, record=True, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    console.print(Text.from_ansi(screen))
    without_fonts = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title=title, code_format=without_fonts, unique_id=title.split()[-1])


def main() -> int:
    """Returns the exit status."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="flights") as name:
        folder = Path(name)
        for made in ("broker-1", "broker-2", "broker-3", "remote"):
            (folder / made).mkdir()
        (folder / "cluster.toml").write_text(CLUSTER)
        (folder / "flights.txt").write_text(FLIGHTS)
        terminal = Terminal(folder)
        try:
            for session, steps in SESSIONS.items():
                screen = terminal.run(list(steps))
                (PICTURES / f"{session}.svg").write_text(
                    picture(screen, f"stratalog: {session}"), encoding="utf-8"
                )
                print(screen, end="\n\n")
        finally:
            terminal.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
