"""The text of a record of convolutions, from its raw data; measures nothing."""

import math
from statistics import median

from contest_text import circumstances, disturbance

DIRECTIONS = {"forward": "forward", "backward_data": "data", "backward_weight": "weight"}
OURS, PEERS = "Partita", ("oneDNN", "PyTorch")


class Setting:
    """What ran at an instruction level on some cores."""

    def __init__(self, record, name):
        self.level, self.cores = name.split()
        self.rates = record["rates"][name]
        wanted = (self.level, int(self.cores))
        entries = enumerate(record["contenders"])
        self.racers = {str(i): c for i, c in entries if (c["level"], c["cores"]) == wanted}

    @property
    def title(self):
        return f"{self.level}, {self.cores} core(s)"

    def of(self, program):
        return [number for number, c in self.racers.items() if c["program"] == program]

    @property
    def direct(self):
        return self.of(OURS)[0]

    def name(self, racer):
        contender = self.racers[racer]
        own = contender["program"] == OURS
        return contender["way"] if own else f"{contender['program']}, {contender['way']}"

    def peak(self):
        return max(rate["peak_gflops"] for rate in self.rates) * 1e9


def write(record, raw_name):
    settings = [Setting(record, name) for name in record["rates"]]
    parts = [head(record, raw_name, settings), disturbance(record, record["slices"])]
    for setting in settings:
        parts.append(summary(record, setting))
    for network in record["networks"]:
        parts.append(f"## {network['name']}, batch {network['batch']}")
        parts += [layer_table(network, setting) for setting in settings]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name, settings):
    versions = {c["program"]: c["facts"]["version"] for c in record["contenders"]}
    present = [f"{name} {versions[name]}" for name in PEERS if name in versions]
    absent = [f"**without {name}**" for name in PEERS if name not in versions]
    lines = [
        f"# Convolutions, {record['started'][:10]}",
        "",
        "GFLOP/s (float32) of single convolutions, all contenders in turns on the same cores:"
        f" {record['rounds']} round(s); in each, after one run that does not count, as many as fit in"
        f" about {record['budget_seconds']} s, at least one. A run counts 2 flops for each tap, pair of"
        " channels and output, padding included, in all directions and by all algorithms alike, so"
        " Winograd's can exceed the peak. `direct` is Partita's by the definition; `two`, `four` and"
        " `two-four` are Winograd's F(2,3), F(4,3), and F(2,3) along D with F(4,3) along H and W, from plain"
        " weights; `fourier` are Fourier transforms of tiles. Fastest is the best of these by the median, layer by layer and direction by direction."
        " Peak is the best rate of multiply-adds in registers in this run. oneDNN's times leave out what"
        f" brings tensors into its layout; `blocked` is one that it chose. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, ", ".join(present + absent)),
        *(f"- {rates_line(setting)}" for setting in settings),
    ]
    if not record["layers_are_all"]:
        lines.append("- **Not all layers of the networks are here.**")
    return "\n".join(lines)


def rates_line(setting):
    told = []
    for key, unit in (("peak_gflops", "GFLOP/s"), ("triad_gbytes", "GB/s")):
        values = [rate[key] for rate in setting.rates if key in rate]
        told.append(f"{max(values):.1f} {unit} (median {median(values):.1f})")
    return f"Measured rates of {setting.title}: peak {told[0]}, triad {told[1]}, its writes once"


def seconds(layer, direction, racer):
    """The median of all rounds; None where the contender could not."""
    answers = layer["turns"][direction][racer]
    times = [s for answer in answers for s in answer.get("seconds", ())]
    return median(times) if times else None


def fastest(layer, direction, racers):
    """The least seconds of these contenders, and whose they are; (None, None) where none could."""
    times = [(seconds(layer, direction, racer), racer) for racer in racers]
    return min((pair for pair in times if pair[0] is not None), default=(None, None))


def needed(network, directions):
    """Layers with directions that a training step of the network computes: nobody asks for the
    gradient of the data that a network is given."""
    pairs = ((layer, d) for layer in network["layers"] for d in directions)
    return [(layer, d) for layer, d in pairs if d != "backward_data" or not layer.get("first")]


def rate(network, directions, racers):
    """Flops a second of all layers, each by the fastest of these contenders; None if any lacks."""
    flops = total = 0
    for layer, direction in needed(network, directions):
        least, _ = fastest(layer, direction, racers)
        if least is None:
            return None
        flops += layer["count"] * layer["flops"]
        total += layer["count"] * least
    return flops / total if total else None


def geometric_mean(networks, directions, racers, rivals):
    """Over layers as often as they occur: the rivals' seconds by those of these contenders."""
    logs = count = 0
    for network in networks:
        for layer, direction in needed(network, directions):
            own, _ = fastest(layer, direction, racers)
            other, _ = fastest(layer, direction, rivals)
            if own is None or other is None:
                return None
            logs += layer["count"] * math.log(other / own)
            count += layer["count"]
    return math.exp(logs / count) if count else None


def summary(record, setting):
    ours, onednn = setting.of(OURS), setting.of("oneDNN")
    peers = [racer for program in PEERS for racer in setting.of(program)]
    columns = ["direct", "fastest", *map(setting.name, peers)]
    columns += ["fastest / best peer", "direct / oneDNN", "fastest / oneDNN"]
    lines = [
        f"## {setting.title}",
        "",
        "GFLOP/s of all layers of a network weighted by their flops; the peak is"
        f" {setting.peak() * 1e-9:.1f}."
        " A layer that occurs several times counts as often; the gradient of the network's input is left"
        " out; the kernels of transposed convolutions stand under the direction of the ordinary"
        " convolution. A peer's column is one layout for all layers, and the best peer is the best of"
        " these columns. The last two are geometric means over layers, as often as they occur, of"
        " Partita's speed by that of oneDNN's better layout of each layer.",
        "",
        "| network | direction | " + " | ".join(columns) + " |",
        "|---|---|" + "---:|" * len(columns),
    ]
    groups = [(name, [d]) for d, name in DIRECTIONS.items()] + [("all", list(DIRECTIONS))]
    for network in record["networks"]:
        for name, directions in groups:
            rates = [rate(network, directions, [setting.direct]), rate(network, directions, ours)]
            rates += [rate(network, directions, [racer]) for racer in peers]
            best = max((r for r in rates[2:] if r), default=None)
            ratios = [rates[1] / best if rates[1] and best else None]
            ratios += means([network], directions, setting, onednn)
            cells = [told(r and r * 1e-9, 1) for r in rates] + [told(r, 2) for r in ratios]
            lines.append(f"| {network['name']} | {name} | {' | '.join(cells)} |")
    for name, directions in groups:
        empty = [""] * (len(columns) - 2)
        ratios = [told(r, 2) for r in means(record["networks"], directions, setting, onednn)]
        lines.append(f"| all networks | {name} | {' | '.join(empty + ratios)} |")
    return "\n".join(lines)


def means(networks, directions, setting, onednn):
    """Of the direct kernels and of the fastest, by oneDNN."""
    choices = ([setting.direct], setting.of(OURS))
    return [geometric_mean(networks, directions, racers, onednn) for racers in choices]


def told(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def layer_table(network, setting):
    columns = [*map(setting.name, setting.racers), "fastest / best peer"]
    lines = [
        f"{setting.title}: GFLOP/s by the median; peak {setting.peak() * 1e-9:.1f}; Partita's fastest"
        " is bold.",
        "",
        "| layer | direction | GFLOP | " + " | ".join(columns) + " |",
        "|---|---|---:|" + "---:|" * len(columns),
    ]
    peers = [racer for program in PEERS for racer in setting.of(program)]
    for layer in network["layers"]:
        for direction, name in DIRECTIONS.items():
            own, winner = fastest(layer, direction, setting.of(OURS))
            other, _ = fastest(layer, direction, peers)
            cells = [cell(layer, direction, racer, winner) for racer in setting.racers]
            cells.append(told(other / own if own and other else None, 2))
            giga = layer["flops"] * 1e-9
            lines.append(f"| {title(layer)} | {name} | {giga:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(layer, direction, racer, winner):
    taken = seconds(layer, direction, racer)
    if taken is None:
        return "-"
    figure = f"{layer['flops'] / taken * 1e-9:.1f}"
    return f"**{figure}**" if racer == winner else figure


def title(layer):
    times = f", {layer['count']} times" if layer["count"] > 1 else ""
    kind = ", of a transposed one" if layer.get("transposed") else ""
    dims = [i for i in range(3) if (layer["input"][i], layer["kernel"][i]) != (1, 1)] or [2]
    kernel = "x".join(str(layer["kernel"][i]) for i in dims)
    stride = f"/{layer['stride'][2]}" if layer["stride"][2] > 1 else ""
    extent = layer["input"][2]
    return f"{layer['name']} {layer['c']}->{layer['f']} {kernel}{stride} @{extent}{times}{kind}"
