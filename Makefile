# smolpack: `make demo` shows the main job, `make test` runs every test. Both set up what is missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: demo test bench lint fuzz fuzz-smoke setup

demo: setup
	cargo build --release --quiet
	tests/demo

test: setup lint
	cargo test --workspace --quiet --no-fail-fast
	$(MAKE) fuzz-smoke
	tests/machine/run

bench: setup
	benches/run

lint:
	cargo fmt --check
	cargo clippy --workspace --all-targets --features linux-guest --quiet -- -D warnings
	tests/licences

# Every target of fuzz/ for some seconds, by plain mutation of its seeds: any toolchain will do. A guest's
# broken drivers are what is tried there, and no news.
FUZZ_SECONDS ?= 20
fuzz-smoke:
	cargo run --quiet --package smolpack-fuzz -- $(FUZZ_SECONDS) 2> >(grep -v 'driver broke the rules' >&2)

# The same targets led by coverage: needs cargo-fuzz and a nightly toolchain.
fuzz:
	fuzz/libfuzzer/run $(FUZZ_SECONDS)

setup:
	tests/setup
