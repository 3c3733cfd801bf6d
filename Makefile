# smolpack: `make demo` shows the main job, `make test` runs every test. Both set up what is missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: demo test bench lint fuzz setup

demo: setup
	cargo build --release --quiet
	tests/demo

test: setup lint
	cargo test --workspace --quiet
	tests/machine/run

bench: setup
	benches/run

lint:
	cargo fmt --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	tests/licences

# Needs cargo-fuzz and a nightly toolchain; `make test` mutates the same corpus on stable.
fuzz:
	cd format/fuzz && cargo +nightly fuzz run reader -- -max_total_time=$${SECONDS_PER_TARGET:-60}

setup:
	tests/setup
