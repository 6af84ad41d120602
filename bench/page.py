"""What pages of records are made of: tables, the circumstances, and figures of turns. Measures nothing."""

from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

MEBIBYTE = 2**20
SHARED = (
    "**The machine was shared with other work; what ran on two cores at once, and every ratio"
    " of it, is not to be relied on.**"
)


def table(columns: str, rows: Iterable[Iterable]) -> str:
    """A table; `columns` are names with `|` between them, those with `>` behind aligned to the right."""
    marks = ["---:" if column.strip().endswith(">") else "---" for column in columns.split("|")]
    lines = [f"| {columns.replace('>', '')} |", f"|{'|'.join(marks)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def head(record: dict, title: str, text: str, peers: str = "no peers", more: Iterable[str] = ()) -> str:
    """Title, what the record shows, and command, machine and versions, a line each, before more such lines."""
    machine, versions = record["machine"], record["versions"]
    changed = {True: " with uncommitted changes", False: "", None: ""}[versions["commit_changed"]]
    commit = (versions["commit"] or "unknown")[:12] + changed
    if not versions["own_binary"]:
        commit += ", but the binaries were built apart"
    lines = [
        f"# {title}, {record['started'][:10]}\n\n{text}\n",
        f"- Command: `{record['command']}`, {record['started']} to {record['finished']}",
        f"- Machine: {machine['processor']}, {machine['cores_usable']} cores, {machine['simd']},"
        f" caches {machine.get('caches') or 'unknown'},"
        f" {machine['memory_bytes'] / 2**30:.1f} GiB, {machine['kernel']}",
        f"- Versions: {versions['partita']} (commit {commit}; binary sha256"
        f" {versions['partita_sha256'][:12]}, kernels {versions['kernels_sha256'][:12]}),"
        f" {versions['rustc']}, Python {versions['python']}, {peers}",
    ]
    return "\n".join([*lines, *(f"- {line}" for line in more)])


def turns_in(node: Any) -> list[dict]:
    """All turns in a record or a part of it."""
    if isinstance(node, list):
        return [turn for one in node for turn in turns_in(one)]
    if not isinstance(node, dict):
        return []
    return node["turns"] if "turns" in node else turns_in(list(node.values()))


def disturbance(record: dict, part: Any = None) -> str:
    """What else the machine did in the turns of a record, or of a part of it."""
    turns = [turn for turn in turns_in(record if part is None else part) if "other_cores" in turn]
    others, stolen = ([turn[key] for turn in turns] for key in ("other_cores", "stolen_cores"))
    if not others:
        return "What else the machine did meanwhile is not known."
    shared = sum(cores > 0.1 for cores in others)
    verdict = SHARED if shared else "The machine did nothing else."
    return (
        f"{verdict} Other processes took {median(others):.2f} cores (median of the turns; most"
        f" {max(others):.2f}; above 0.1 in {shared} of {len(others)} turns), other virtual machines"
        f" {median(stolen):.2f} (most {max(stolen):.2f}). Load at the start"
        f" {record['machine']['load_at_start']:.2f}."
    )


def of(program: str, contenders: list[dict]) -> list[dict]:
    return [contender for contender in contenders if contender["program"] == program]


def times(contender: dict) -> list[float]:
    """Seconds of a step in each turn."""
    return [turn["step_seconds"] for turn in contender["turns"]]


def step_seconds(contender: dict) -> float:
    """The median of the turns."""
    return median(times(contender))


def bracketed(whole: float, parts: Iterable[float], form: Callable[[float], str]) -> str:
    parts = list(parts)
    return f"{form(whole)} [{form(min(parts))} .. {form(max(parts))}]"


def digits(count: int) -> Callable[[float], str]:
    return lambda number: f"{number:.{count}f}"


def spread(values: list[float], count: int = 4, middle: Callable = median) -> str:
    """The middle of figures, [least .. most]."""
    return bracketed(middle(values), values, digits(count))


def ratio(other: dict | None, own: dict, form: Callable[[float], str] = digits(2), less: float = 0) -> str:
    """How many times the rate of the other one's samples a contender has, in brackets round by round."""
    if other is None:
        return "-"
    rates = [[one["batch"] / seconds for seconds in times(one)] for one in (own, other)]
    rounds = [a / b - less for a, b in zip(*rates)]
    whole = (own["batch"] / step_seconds(own)) / (other["batch"] / step_seconds(other)) - less
    return bracketed(whole, rounds, form)


def percent(share: float, count: int = 1) -> str:
    return f"{100 * share:.{count}f} %"


def resident(contender: dict) -> str:
    """The largest resident set of all turns, in MiB."""
    peaks = [turn["memory"].get("measured_peak_bytes") for turn in contender["turns"]]
    known = [peak for peak in peaks if peak is not None]
    return f"{max(known) / MEBIBYTE:.1f}" if known else "-"


def quoted(text: str) -> str:
    """Code in a cell of a table."""
    return "`" + text.replace("|", "\\|") + "`"


def shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def values_of(items: Iterable[dict], key: str) -> list:
    """Different values of a key, in their order."""
    return list(dict.fromkeys(item[key] for item in items))
