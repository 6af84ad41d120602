"""The text of a record of trainings in bf16 beside trainings in f32; measures nothing."""

from statistics import mean, median

from contest_text import circumstances


def write(record, raw_name):
    models = dict.fromkeys(training["model"] for training in record["trainings"])
    parts = [head(record, raw_name), *(section(record, model) for model in models)]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    lines = [
        f"# Trainings in bf16, {record['started'][:10]}",
        "",
        "Activations, their gradients and messages in bf16, arithmetic and weights in f32, beside the same training in f32.",
        f"{record['seeds']} seeds each, {record['epochs']} epochs, two threads. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def section(record, model):
    def of(precision):
        return [one for one in record["trainings"] if (one["model"], one["precision"]) == (model, precision)]

    single, half = of("f32"), of("bf16")
    lines = [f"## {model}", "", *losses(single, half), "", *costs(single, half)]
    return "\n".join(lines)


def losses(single, half):
    lines = [
        "Losses of validation after each epoch: mean over seeds [least .. most], and the mean distance between precisions at",
        "the same seed beside that between two seeds in f32.",
        "",
        "| epoch | f32 | bf16 | distance of precisions | distance of seeds |",
        "|---:|---:|---:|---:|---:|",
    ]
    for epoch in range(len(single[0]["validation_losses"])):
        own = [one["validation_losses"][epoch] for one in single]
        other = [one["validation_losses"][epoch] for one in half]
        apart = mean(abs(a - b) for a, b in zip(own, other, strict=True))
        pairs = [abs(a - b) for at, a in enumerate(own) for b in own[:at]]
        seeds = f"{mean(pairs):.4f}" if pairs else "-"
        lines.append(f"| {epoch + 1} | {spread(own)} | {spread(other)} | {apart:.4f} | {seeds} |")
    return lines


def costs(single, half):
    lines = ["| | f32 | bf16 | bf16 / f32 |", "|---|---:|---:|---:|"]
    figures = [
        ("median step, ms", "step_seconds", 1e3, ".1f"),
        ("memory of the rank, MiB", "memory_bytes", 2.0**-20, ".0f"),
    ]
    for name, key, factor, form in figures:
        a, b = (median(one[key] for one in all_of) * factor for all_of in (single, half))
        lines.append(f"| {name} | {a:{form}} | {b:{form}} | {b / a:.2f} |")
    return lines


def spread(values):
    return f"{mean(values):.4f} [{min(values):.4f} .. {max(values):.4f}]"
