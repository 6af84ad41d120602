"""The command line: ``python -m partita``, and the program ``partita`` of the wheel."""

import signal
import sys

from ._partita import main as _main


def main() -> int:
    """Runs the command line with the arguments of this process."""
    # The command line handles signals itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
