"""Plans a training for a cluster of A100, and draws time against memory."""

import sys

import matplotlib

matplotlib.use("Agg")
import partita


def main():
    plan = partita.plan("cosmoflow@128", machine="dgx-a100", ranks=16, batch=16, no_io=True, budget="20s")
    print(plan)
    print(f"best: {plan.best.strategy}, {1e3 * plan.best.iteration_seconds:.2f} ms a step")
    step = partita.predict("cosmoflow@128", machine="dgx-a100", ranks=16, batch=16, strategy="data=16", no_io=True)
    print(f"data=16: {1e3 * step.iteration_seconds:.2f} ms a step, {step.memory_bytes_max / 2**30:.2f} GiB")
    assert plan.best.iteration_seconds <= step.iteration_seconds
    plan.plot().figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "plan.png")
    step.plot()


if __name__ == "__main__":
    main()
