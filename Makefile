# smolpack: `make demo` shows the main job, `make test` runs every test. Both set up what is missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: demo test bench lint fuzz setup

demo: setup
	cargo build --release --quiet
	tests/demo

test: setup lint
	cargo test --workspace --quiet --no-fail-fast
	tests/machine/run

bench: setup
	benches/run

lint:
	cargo fmt --check
	cargo clippy --workspace --all-targets --features linux-guest --quiet -- -D warnings
	tests/licences

# Needs cargo-fuzz and a nightly toolchain; `make test` mutates the same seeds on stable.
FUZZ_SECONDS ?= 60
fuzz:
	for target in reader mended; do \
	  mkdir -p format/fuzz/corpus/$$target; cp testdata/format/*.smol* format/fuzz/corpus/$$target/; \
	  (cd format && cargo +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS)); \
	done

setup:
	tests/setup
