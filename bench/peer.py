"""What the peers have in common: they take turns with other programs, driven line by line.

A driven peer writes a line {"ready": facts} and then reads lines from standard input: `step K` runs K
training steps and answers one line {"seconds": [K step times], "loss": last loss}; `quit` or the end
of input ends it. Between lines it waits without using the processor. A line that is not understood is
answered by {"error": ...}.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "fixtures"))


def say(record):
    print(json.dumps(record), flush=True)


def serve(facts, run):
    """Answers lines until the end; `run(K)` gives the seconds of K steps and the last loss."""
    say({"ready": facts})
    for line in iter(sys.stdin.readline, ""):
        words = line.split()
        if words == ["quit"]:
            break
        if len(words) == 2 and words[0] == "step" and words[1].isdecimal() and int(words[1]) > 0:
            seconds, loss = run(int(words[1]))
            say({"seconds": seconds, "loss": loss})
        elif words:
            possible = "possible are `step K` with K >= 1, and `quit`"
            say({"error": f"{line.strip()!r} is not possible: {possible}"})


def at_least(least):
    def whole(text):
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is not possible; the least is {least}")
        return number

    return whole
