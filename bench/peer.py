"""What the peers have in common: they take turns with other programs, driven line by line.

A peer writes a line {"ready": facts} and then reads lines from standard input, each answered by one line of JSON: most
peers know `step K`, which runs K training steps and is answered by {"seconds": [K step times], "loss": last loss}.
`quit` or the end of input ends it. Between lines it waits without using the processor. A line that is not understood
is answered by {"error": ...}.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "fixtures"))


def say(record: dict) -> None:
    print(json.dumps(record), flush=True)


def serve(facts: dict, answer: Callable[[list[str]], dict]) -> None:
    """Answers lines until the end; `answer` has the words of a line and raises what it does not understand."""
    say({"ready": facts})
    for line in iter(sys.stdin.readline, ""):
        words = line.split()
        if words == ["quit"]:
            break
        if words:
            try:
                say(answer(words))
            except (ValueError, RuntimeError) as error:
                say({"error": str(error)})


def steps(run: Callable[[int], tuple[list[float], float]]) -> Callable[[list[str]], dict]:
    """The answer to `step K`; `run(K)` gives the seconds of K steps and the last loss."""

    def answer(words: list[str]) -> dict:
        if len(words) != 2 or words[0] != "step" or not words[1].isdecimal() or int(words[1]) < 1:
            raise ValueError(f"{' '.join(words)!r} is not possible: possible are `step K` with K >= 1, and `quit`")
        seconds, loss = run(int(words[1]))
        return {"seconds": seconds, "loss": loss}

    return answer


def parser(text: str) -> argparse.ArgumentParser:
    """The options of all peers of training steps; `text` says what the peer is."""
    options = argparse.ArgumentParser(description=text.split("\n")[0])
    options.add_argument("model", help="what `partita inspect MODEL --text` prints")
    options.add_argument("--batch", type=at_least_one, default=1, help="samples a step of all processes")
    return options


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not possible; the least is 1")
    return number


def guarded(main: Callable[[], None]) -> None:
    try:
        main()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
