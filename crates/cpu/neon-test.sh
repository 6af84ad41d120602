#!/bin/sh
# Tests for 64-bit ARM on an x86-64 machine: cross-compiles and runs in QEMU's user emulation.
#
# Needs Debian 12 with cargo, a C compiler as linker of the host, and network; no root. What else it
# takes are packages of Debian (230 MB): a rustc with the standard library of both architectures, a
# linker, libc, QEMU. They are unpacked under the target directory; nothing is installed.
# Arguments replace the tests to run: neon-test.sh --package partita-run --lib
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "${CARGO_TARGET_DIR:-$here/target}/neon"
dir=$(cd "${CARGO_TARGET_DIR:-$here/target}/neon" && pwd)
root=$dir/root
target=aarch64-unknown-linux-gnu

# apt with lists of its own, so that the machine need not know the second architecture.
apt() {
    tool=$1
    shift
    "$tool" -q -o Dir::State="$dir/apt" -o Dir::State::lists="$dir/apt/lists" \
        -o Dir::State::status="$dir/apt/status" -o Dir::Cache="$dir/apt/cache" \
        -o APT::Architecture=amd64 -o APT::Architectures::=amd64 -o APT::Architectures::=arm64 \
        -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 "$@"
}

# The package with a number in its name that another one depends on.
depends() {
    found=$(apt apt-cache depends "$1" | sed -n "s/^ *Depends: \($2[0-9.]*\)\$/\1/p" | head -n 1)
    echo "${found:?$1 names no $2}"
}

unpack() {
    rm -rf "$dir/apt" "$dir/debs" "$root"
    mkdir -p "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial" "$dir/debs" "$root"
    : >"$dir/apt/status"
    apt apt-get update
    std=$(depends libstd-rust-web-dev libstd-rust-web-)
    llvm=$(depends "$std" libllvm)
    (
        cd "$dir/debs"
        apt apt-get download \
            rustc-web "$std" libstd-rust-web-dev libstd-rust-web-dev:arm64 "$llvm" \
            libedit2 libbsd0 libmd0 libffi8 libxml2 libicu72 libz3-4 libjansson4 \
            gcc-12-aarch64-linux-gnu binutils-aarch64-linux-gnu libgcc-12-dev-arm64-cross \
            libgcc-s1-arm64-cross libc6-arm64-cross libc6-dev-arm64-cross qemu-user-static
        for deb in *.deb; do
            dpkg-deb -x "$deb" "$root"
        done
    )
    libraries=$root/usr/lib/x86_64-linux-gnu
    cat >"$dir/rustc" <<END
#!/bin/sh
LD_LIBRARY_PATH='$libraries' exec '$root/usr/bin/rustc' "\$@"
END
    cat >"$dir/linker" <<END
#!/bin/sh
LD_LIBRARY_PATH='$libraries' exec '$root/usr/bin/aarch64-linux-gnu-gcc-12' \
    --sysroot='$root' -L'$root/usr/aarch64-linux-gnu/lib' "\$@"
END
    chmod +x "$dir/rustc" "$dir/linker"
    rm -rf "$dir/apt" "$dir/debs"
    touch "$dir/unpacked"
}

[ -e "$dir/unpacked" ] || unpack
[ $# -gt 0 ] || set -- --package partita-cpu --lib --tests

cd "$here"
export CARGO_TARGET_DIR="$dir/build" RUSTC="$dir/rustc"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$dir/linker"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$root/usr/bin/qemu-aarch64-static -L $root/usr/aarch64-linux-gnu"
exec "${CARGO:-cargo}" test --release --locked --target "$target" "$@"
