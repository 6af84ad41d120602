#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh environment, and runs the examples and the notebook of examples/python. Exits with
# 75 where the packages that they need cannot be installed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The profile of the tests: what they have built is not built again.
export MATURIN_PEP517_ARGS=${MATURIN_PEP517_ARGS:---profile suite}

# WHEEL_ENV names an environment that has the packages, for machines that fetch none.
if [ -n "${WHEEL_ENV:-}" ]; then
    python="$WHEEL_ENV/bin/python"
    export PATH="$WHEEL_ENV/bin:$PATH"
    "$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work" . || exit 1
    "$python" -m pip install --quiet --no-deps --force-reinstall "$work"/partita-*.whl
else
    python3 -m venv "$work/env"
    python="$work/env/bin/python"
    # Where pip, which builds in this environment, finds maturin.
    export PATH="$work/env/bin:$PATH"
    # Wheels alone: to build one would fetch what has no hash here.
    "$python" -m pip install --quiet --require-hashes --only-binary :all: -r crates/python/wheel-requirements.txt ||
        { echo "the packages of crates/python/wheel-requirements.txt cannot be installed" >&2; exit 75; }
    CARGO_TARGET_DIR="$target" "$python" -m pip install --quiet --no-deps --no-build-isolation .
fi

examples=$PWD/examples/python
cd "$work"
for name in unet_nifti resnet_finetune search; do
    echo "example $name"
    "$python" "$examples/$name.py"
done
echo "example plan_a100"
"$python" "$examples/plan_a100.py" "$work/plan.png"
test -s "$work/plan.png"
echo "example cosmoflow_mpi, alone"
alone=$("$python" "$examples/cosmoflow_mpi.py" "$work/alone" | sed 's/,[^,]*$//')
wheel="$target/mpi-wheel/bin/mpiexec"
for launcher in "mpirun.openmpi --oversubscribe --allow-run-as-root" mpirun.mpich "$wheel"; do
    command -v "${launcher%% *}" > /dev/null || { echo "NOT RUN: cosmoflow_mpi: ${launcher%% *} is missing"; continue; }
    echo "example cosmoflow_mpi, $launcher"
    under=$($launcher -n 2 "$python" "$examples/cosmoflow_mpi.py" "$work/under" | sed 's/,[^,]*$//')
    rm -rf "$work/under"
    [ "$alone" = "$under" ] || { echo "alone: $alone; under $launcher: $under" >&2; exit 1; }
done
echo "the notebook"
"$python" - "$examples/notebook.ipynb" <<'PY'
import sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=300).execute()
assert "strategy" in str(notebook.cells[1].outputs) and "image/png" in str(notebook.cells[2].outputs)
PY
