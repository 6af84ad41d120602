"""What the texts of the records have in common; measures nothing."""

from statistics import median

SHARED = (
    "**The machine was shared with other work; what ran on two cores at once, and every ratio"
    " of it, is not to be relied on.**"
)


def circumstances(record, peers):
    """Command, machine and versions, a line each."""
    machine, versions = record["machine"], record["versions"]
    changed = {True: " with uncommitted changes", False: "", None: ""}[versions["commit_changed"]]
    commit = (versions["commit"] or "unknown")[:12] + changed
    if not versions["own_binary"]:
        commit += ", but the binaries were built apart"
    return [
        f"- Command: `{record['command']}`, {record['started']} to {record['finished']}",
        f"- Machine: {machine['processor']}, {machine['cores_usable']} cores, {machine['simd']},"
        f" caches {machine.get('caches') or 'unknown'},"
        f" {machine['memory_bytes'] / 2**30:.1f} GiB, {machine['kernel']}",
        f"- Versions: {versions['partita']} (commit {commit}; binary sha256"
        f" {versions['partita_sha256'][:12]}, kernels {versions['kernels_sha256'][:12]}),"
        f" {versions['rustc']}, Python {versions['python']}, {peers}",
    ]


def disturbance(record, turns):
    """What else the machine did in these turns."""
    others = [t["other_cores"] for t in turns if "other_cores" in t]
    if not others:
        return "What else the machine did meanwhile is not known."
    stolen = [t["stolen_cores"] for t in turns if "stolen_cores" in t]
    shared = sum(cores > 0.1 for cores in others)
    verdict = SHARED if shared else "The machine did nothing else."
    return (
        f"{verdict} Other processes took {median(others):.2f} cores (median of the turns; most"
        f" {max(others):.2f}; above 0.1 in {shared} of {len(others)} turns), other virtual machines"
        f" {median(stolen):.2f} (most {max(stolen):.2f}). Load at the start"
        f" {record['machine']['load_at_start']:.2f}."
    )


def step_seconds(contender):
    """The median of the turns."""
    return median(turn["step_seconds"] for turn in contender["turns"])


def spread(contender):
    """The median of the turns, [least .. most]."""
    times = [turn["step_seconds"] for turn in contender["turns"]]
    return f"{median(times):.4f} [{min(times):.4f} .. {max(times):.4f}]"


def percent(share):
    return f"{100 * share:.1f} %"
