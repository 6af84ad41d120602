"""The text of a record of convolutions, from its raw data; measures nothing."""

from statistics import median

from contest_text import circumstances, disturbance, percent

DIRECTIONS = {"forward": "forward", "backward_data": "data", "backward_weight": "weight"}


def write(record, raw_name):
    parts = [head(record, raw_name), disturbance(record, record["slices"])]
    threads = sorted(record["rates"], key=int)
    for cores in threads:
        parts.append(summary(record, cores))
    for network in record["networks"]:
        parts.append(f"## {network['name']}, batch {network['batch']}")
        parts += [layer_table(record, network, cores) for cores in threads]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    versions = {c["program"]: c["facts"]["version"] for c in record["contenders"]}
    absent = [name for name in ("oneDNN", "PyTorch") if name not in versions]
    peers = ", ".join(f"{name} {v}" for name, v in versions.items() if name != "Partita")
    peers = ", ".join(filter(None, [peers, *(f"**without {name}**" for name in absent)]))
    lines = [
        f"# Convolutions, {record['started'][:10]}",
        "",
        "GFLOP/s (float32) of single convolutions, all contenders in turns on the same cores:"
        f" {record['rounds']} round(s); in each, after one run that does not count, as many as fit in"
        f" about {record['budget_seconds']} s, at least one. A run counts 2 flops for each tap, pair of"
        " channels and output, padding included, in all directions alike. Peak is the best rate of"
        " multiply-adds in registers in this run. oneDNN's times leave out what brings tensors into its"
        f" layout; `blocked` is one that it chose. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, peers),
        *(f"- {rates_line(record, cores)}" for cores in sorted(record["rates"], key=int)),
    ]
    if not record["layers_are_all"]:
        lines.append("- **Not all layers of the networks are here.**")
    return "\n".join(lines)


def rates_line(record, cores):
    told = []
    for key, unit in (("peak_gflops", "GFLOP/s"), ("triad_gbytes", "GB/s")):
        values = [rate[key] for rate in record["rates"][cores] if key in rate]
        told.append(f"{max(values):.1f} {unit} (median {median(values):.1f})")
    return f"Measured rates of {cores} core(s): peak {told[0]}, triad {told[1]}, its writes once"


def peak(record, cores):
    return max(rate["peak_gflops"] for rate in record["rates"][cores]) * 1e9


def racers(record, cores):
    """Number and contender, of those on so many cores."""
    return [(str(i), c) for i, c in enumerate(record["contenders"]) if str(c["cores"]) == cores]


def seconds_of(layer, direction, racer):
    """Of all rounds; none where the contender could not."""
    return [s for answer in layer["turns"][direction][racer] for s in answer.get("seconds", ())]


def is_needed(layer, direction):
    """Nobody asks for the gradient of the data that a network is given."""
    return not (direction == "backward_data" and layer.get("first"))


def needed(network, directions):
    """Layers with directions that a training step of the network computes."""
    pairs = ((layer, d) for layer in network["layers"] for d in directions)
    return [(layer, d) for layer, d in pairs if is_needed(layer, d)]


def share_of_peak(record, network, directions, cores, racer):
    """Weighted by flops, that is of their sum by the sum of the median times; None if any lacks."""
    flops = seconds = 0
    for layer, direction in needed(network, directions):
        times = seconds_of(layer, direction, racer)
        if not times:
            return None
        flops += layer["count"] * layer["flops"]
        seconds += layer["count"] * median(times)
    return flops / seconds / peak(record, cores) if seconds else None


def summary(record, cores):
    able = racers(record, cores)
    lines = [
        f"Share of the peak of {cores} core(s), all layers of a network weighted by their flops"
        " (medians; a layer that occurs several times counts as often; the gradient of the network's"
        " input is left out; the kernels of transposed convolutions stand under the direction of the"
        " ordinary convolution). Ratio: Partita by the best of the others.",
        "",
        "| network | direction | " + " | ".join(c["name"] for _, c in able) + " | ratio |",
        "|---|---|" + "---:|" * (len(able) + 1),
    ]
    for network in record["networks"]:
        groups = [(name, [d]) for d, name in DIRECTIONS.items()] + [("all", list(DIRECTIONS))]
        for name, directions in groups:
            shares = [share_of_peak(record, network, directions, cores, r) for r, _ in able]
            told = " | ".join("-" if share is None else percent(share) for share in shares)
            lines.append(f"| {network['name']} | {name} | {told} | {ratio(able, shares)} |")
    return "\n".join(lines)


def ratio(able, shares):
    pairs = [(c["program"], share) for (_, c), share in zip(able, shares) if share is not None]
    own = [share for program, share in pairs if program == "Partita"]
    others = [share for program, share in pairs if program != "Partita"]
    return f"{own[0] / max(others):.2f}" if own and others else "-"


def layer_table(record, network, cores):
    able = racers(record, cores)
    lines = [
        f"{cores} core(s): GFLOP/s, median (best), share of peak by the median.",
        "",
        "| layer | direction | GFLOP | " + " | ".join(c["name"] for _, c in able) + " |",
        "|---|---|---:|" + "---:|" * len(able),
    ]
    for layer in network["layers"]:
        for direction, name in DIRECTIONS.items():
            cells = (cell(record, layer, direction, cores, racer) for racer, _ in able)
            giga = layer["flops"] * 1e-9
            lines.append(f"| {title(layer)} | {name} | {giga:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def title(layer):
    times = f", {layer['count']} times" if layer["count"] > 1 else ""
    kind = ", of a transposed one" if layer.get("transposed") else ""
    dims = [i for i in range(3) if (layer["input"][i], layer["kernel"][i]) != (1, 1)] or [2]
    kernel = "x".join(str(layer["kernel"][i]) for i in dims)
    stride = f"/{layer['stride'][2]}" if layer["stride"][2] > 1 else ""
    extent = layer["input"][2]
    return f"{layer['name']} {layer['c']}->{layer['f']} {kernel}{stride} @{extent}{times}{kind}"


def cell(record, layer, direction, cores, racer):
    times = seconds_of(layer, direction, racer)
    if not times:
        return "-"
    rate, best = layer["flops"] / median(times), layer["flops"] / min(times)
    return f"{rate * 1e-9:.1f} ({best * 1e-9:.1f}) {percent(rate / peak(record, cores))}"
