"""Shows events of verbs in a terminal or a notebook."""

import sys
import time
from typing import Callable, Optional, Union

Listener = Callable[[str, str, int, int], None]
#: Seconds between lines where lines cannot be replaced.
QUIET = 10.0


def listener(progress: Union[bool, Listener]) -> Optional[Listener]:
    """What ``progress=`` of a verb asks for: nothing, this function, or a line that is replaced."""
    if callable(progress):
        return progress
    return Screen().show if progress else Screen(quiet=True).show


def is_notebook() -> bool:
    """Whether output goes to a notebook."""
    shell = sys.modules.get("IPython")
    shell = shell and shell.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class Screen:
    """Writes to standard error: one line that is replaced, in a terminal or a notebook; else a line per epoch."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet
        self.replaces = is_notebook() or sys.stderr.isatty()
        self.width = 0
        self.printed = time.monotonic()

    def show(self, kind: str, text: str, done: int, total: int) -> None:
        """Shows an event: ``warning``, ``note``, ``failure``, ``status``, ``samples``, ``step``, ``epoch`` or ``done``."""
        if kind in ("warning", "note"):
            self._line(f"partita: {text}")
        elif kind == "failure" or self.quiet:
            return  # A failure is raised.
        elif kind == "epoch":
            self._line(text)
        elif kind == "done":
            self._replace("")
        elif kind == "status":
            self._replace(text)
        else:
            bar = "#" * (24 * done // total) if total else ""
            self._replace(f"{text} [{bar:24}] {done}/{total}")

    def _line(self, text: str) -> None:
        self._replace("")
        print(text, file=sys.stderr, flush=True)
        self.printed = time.monotonic()

    def _replace(self, text: str) -> None:
        if self.replaces:
            if text or self.width:
                print("\r" + text.ljust(self.width) + ("" if text else "\r"), end="", file=sys.stderr, flush=True)
            self.width = len(text)
        elif text and time.monotonic() - self.printed > QUIET:
            print(text, file=sys.stderr, flush=True)
            self.printed = time.monotonic()
