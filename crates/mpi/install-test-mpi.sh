#!/usr/bin/env bash
# Installs what the tests under MPI need: Open MPI and MPICH with their headers and the tools for two
# hosts on one machine by apt-get (Debian, as root), and MPICH 5, which has the standard ABI, from PyPI
# into target/mpi-wheel (or $CARGO_TARGET_DIR/mpi-wheel). What cannot be installed is told, not fatal:
# the tests then name what they did not run.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
wheel=${CARGO_TARGET_DIR:-target}/mpi-wheel

warn() {
    echo "install-test-mpi: $*" >&2
}

packages=()
need() { # command or file, package
    if ! command -v "$1" > /dev/null && ! compgen -G "$1" > /dev/null; then
        packages+=("$2")
    fi
}
need mpirun.openmpi openmpi-bin
need mpirun.mpich mpich
need '/usr/lib/*/openmpi/include/mpi.h' libopenmpi-dev
need '/usr/include/*/mpich/mpi.h' libmpich-dev
need ip iproute2
python3 -c 'import venv, ensurepip' 2> /dev/null || packages+=(python3-venv)

if [ "${#packages[@]}" -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
        apt-get update &&
            DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
                "${packages[@]}" || warn "could not install ${packages[*]}"
    else
        warn "missing, and not installed without root and apt-get: ${packages[*]}"
    fi
fi

if [ ! -x "$wheel/bin/mpiexec" ]; then
    python3 -m venv "$wheel" && "$wheel/bin/pip" install --quiet --require-hashes --only-binary :all: -r crates/mpi/test-requirements.txt ||
        warn "could not install mpich 5.0.2 from PyPI into $wheel"
fi
exit 0
