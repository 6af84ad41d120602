# Everything builds in release form, so that all targets share what is built.

CARGO ?= cargo
PARTITA = target/release/partita
# Paths of this checkout and of Cargo's home do not get into binaries, so that builds from other folders are equal.
PLAIN = --remap-path-prefix=$(CURDIR)=/partita --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo
RELEASE = RUSTFLAGS="$(RUSTFLAGS) $(PLAIN)" $(CARGO) build --release --locked
# In the profile of the tests, so that they share what is built.
XTASK = $(CARGO) run --quiet --profile suite --locked --package xtask --

.PHONY: all binary test test-long fuzz test-neon demo bench book

all:
	$(RELEASE) --workspace

# rustup installs here and asks for a new shell.
export PATH := $(PATH):$(HOME)/.cargo/bin

# Installs what is missing where it can, and says what is. Then the checks from the quickest to the longest; the last
# lines say what did not run, what each step took, and the sum of all tests. More than 90 minutes of processor time fail.
test:
	.ci/setup
	$(XTASK) check

# The same tests with more cases, ten minutes of each fuzz target with overflow checks, a comparison of two builds, and
# Miri and the thread sanitizer where they are installed; what is not says so.
test-long:
	$(XTASK) test --long

# A minute of each fuzz target with overflow checks, and the table of inputs and faults.
fuzz:
	$(XTASK) fuzz --seconds 60

# The CPU kernels for 64-bit ARM, in an emulator; loads packages of Debian.
test-neon:
	CARGO=$(CARGO) crates/cpu/neon-test.sh

# The binary alone.
binary:
	$(RELEASE) --package partita-cli

demo: binary
	$(PARTITA) demo

# The book in docs/book. Its links to files outside of docs/src lead to the files of this checkout.
book:
	@command -v mdbook > /dev/null || { echo "mdbook is missing: cargo install mdbook --locked" >&2; exit 1; }
	mdbook build docs
	sed -i -E 's#(href="(\.\./)+[^":]*)\.html#\1.md#g' docs/book/*.html

bench: binary
	$(RELEASE) --package partita-cpu --example convolution
	python3 bench/record.py
	python3 bench/record_peers.py
	python3 bench/record_halos.py
	python3 bench/record_ladder.py
	python3 bench/record_schedules.py
	python3 bench/record_branches.py
	python3 bench/record_accuracy.py
	python3 bench/record_convolutions.py
	python3 bench/record_steps.py
	python3 bench/record_tuning.py
	python3 bench/record_chosen.py
	python3 bench/record_precision.py
	python3 bench/record_gpu.py
	python3 bench/record_threads.py
	python3 bench/record_store.py
	python3 bench/record_offload.py
	python3 bench/record_published.py
	python3 bench/record_space.py
	python3 bench/record_memory.py
