"""The text of a record of steps on a device of OpenCL; measures nothing."""

from statistics import median

from contest_text import circumstances


def write(record, raw_name):
    parts = [head(record, raw_name), table(record), programs(record)]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    device = record["device"]
    lines = [
        f"# Steps on a device, {record['started'][:10]}",
        "",
        f"`--device {device['device']}`: {device['name']}, {device['platform']}, {device['version']}, {device['units']} units.",
        f"Two ranks share it. The processor computes with one thread a rank. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def table(record):
    lines = [
        "Milliseconds a step (median), and times that of the processor under the same strategy. Then the largest distance of a loss",
        "of an epoch from that of one rank on the processor in f32, for both: what rounding alone makes of a training is seen where",
        "the processor's own split differs. In f16 the scale of the gradients is the default, and the processor works on copies in f32.",
        "",
        "| network, batch | strategy | precision | processor | device | device / processor | losses, processor | losses, device |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for network in record["networks"]:
        keys = ("device", "strategy", "precision")
        of = {tuple(one["facts"][key] for key in keys): one for one in network["contenders"]}
        exact = losses(of[("cpu", "data=1", "f32")])

        def far(entry):
            return max(abs(x - y) / max(abs(y), 1e-3) for x, y in zip(losses(entry), exact, strict=True))

        for device, strategy, precision in of:
            if device == "cpu":
                continue
            own, other = of[(device, strategy, precision)], of[("cpu", strategy, precision)]
            a, b = seconds(other), seconds(own)
            times = f"{a * 1e3:.1f} | {b * 1e3:.1f} | {b / a:.1f}"
            name = f"{network['model']}, {network['batch']}"
            lines.append(f"| {name} | {strategy} | {precision} | {times} | {far(other):.1e} | {far(own):.1e} |")
    return "\n".join([*lines, *lagging(record)])


def lagging(record):
    """Networks whose first updates in f16 were skipped."""
    texts = []
    for network in record["networks"]:
        scaled = [one for one in network["contenders"] if one["turns"][-1]["loss_scale"]]
        skipped = {one["facts"]["device"]: one["turns"][-1]["loss_scale"]["skipped"] for one in scaled}
        if any(skipped.values()):
            device = skipped[record["device"]["device"]]
            texts.append(f"{network['model']} {skipped['cpu']} on the processor and {device} on the device")
    head = "Updates skipped in f16 until the loss scale fitted, by which losses lag: "
    return ["", head + ", ".join(texts) + "."] if texts else []


def programs(record):
    lines = [
        "Before implementations, their workspaces and packed weights are chosen, the program (`partita lower --after fuse`) of the device should be that of",
        "the processor:",
        "",
        "| network, batch | strategy | processor, SHA-256 | device | equal |",
        "|---|---|---|---|---|",
    ]
    for network in record["networks"]:
        for program in network["programs"]:
            own, other = program["sha256"]
            name, equal = f"{network['model']}, {network['batch']}", "yes" if own == other else "**no**"
            lines.append(f"| {name} | {program['strategy']} | {own[:16]} | {other[:16]} | {equal} |")
    return "\n".join(lines)


def seconds(entry):
    return median(turn["step_seconds"] for turn in entry["turns"])


def losses(entry):
    return entry["turns"][0]["losses"]
