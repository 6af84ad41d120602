"""The text of a record of errors against the size of samples; measures nothing."""

from statistics import mean

from contest_text import circumstances


def write(record, raw_name):
    return "\n\n".join([head(record, raw_name), table(record)]) + "\n"


def head(record, raw_name):
    held = round(record["universes"] * record["validation"])
    lines = [
        f"# Errors against the size of samples, {record['started'][:10]}",
        "",
        f"{record['universes'] - held} universes of {record['grid']}^3 voxels of 12.5 Mpc/h to train on, {held} to validate, as a whole"
        " and as the",
        "sub-volumes that cover them. The network of `partita demo`, whose pools span a sample. All trainings see each voxel",
        f"{record['epochs']} times and take the same number of steps, of {record['batch']} universes. Shown are mean absolute errors on the",
        f"validation samples, mean of {record['seeds']} seed(s) [least .. most]; targets lie between -1 and 1. Raw data: `{raw_name}`.",
        "Behind its pools the network has one value per sample and channel, so that its batch norms take their statistics from as many",
        "values as a step has samples: with few of them, whole universes are trained on noisier ones.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def table(record):
    targets = list(record["trainings"][0]["errors"])
    lines = [
        "| sample | samples a step | " + " | ".join(targets) + " |",
        "|---|---:|" + "---:|" * len(targets),
    ]
    for size in sorted({training["size"] for training in record["trainings"]}):
        same = [training for training in record["trainings"] if training["size"] == size]
        cells = [spread([training["errors"][target] for training in same]) for target in targets]
        samples = record["batch"] * (record["grid"] // size) ** 3
        lines.append(f"| {size}^3 | {samples} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def spread(errors):
    return f"{mean(errors):.3f} [{min(errors):.3f} .. {max(errors):.3f}]"
