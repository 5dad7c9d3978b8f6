# Run `make setup` first, then any other target. Each target is a command that also works by hand.

# Finds the cargo of rustup in a shell that does not have it in its path yet, before an older one of the distribution.
export PATH := $(HOME)/.cargo/bin:$(PATH)

# A state for incremental builds takes more room than the programs, and a first build does not profit by it.
export CARGO_INCREMENTAL ?= 0

.PHONY: setup programs test study bench lint targets try-targets try-scale unit hostile golden install deb release

## setup: install what is missing on Debian or Ubuntu
setup:
	scripts/setup

# The same without the judge's kernel, which needs a compiled xtask.
programs:
	scripts/setup programs

## test: all tests, virtual machines included; tests that a machine cannot run are skipped with a message
test: setup lint unit hostile try-targets try-scale

## study: the experiments on every file system, on one modelled card. Our own file system is first, because it needs no
## kernel; meanwhile the lab's kernel is built if it is missing. If that fails, the reason is printed and the rivals run
## in QEMU, or are left out without QEMU. Then a real tree becomes a volume, which fsck.f2fs and Linux judge, beside
## other tools.
study: programs
	cargo build --release -p flashkit -p xtask
	target/release/xtask study

## bench: the cost of flashkit, side by side with peers in one run
bench: setup
	cargo xtask bench

lint: targets
	@if command -v shellcheck >/dev/null; then \
		echo 'shellcheck scripts/* .ci/run workflow/slurm-array'; \
		shellcheck scripts/* .ci/run workflow/slurm-array; \
	else \
		echo 'lint: no shellcheck, so the scripts are not checked'; \
	fi
	cargo fmt --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	cargo xtask spec --check

## targets: check the engine and the archives for other systems, and the command for 32-bit Linux and Windows, as far as
## their standard libraries are installed. The lab needs 64 bits, so the command is checked without it.
LIBRARY_TARGETS = wasm32-unknown-unknown x86_64-apple-darwin
COMMAND_TARGETS = i686-unknown-linux-musl x86_64-pc-windows-gnu
# A check links nothing, so nothing has to compile zstd's C for another system.
NO_C = x86_64_apple_darwin $(subst -,_,$(COMMAND_TARGETS))
$(foreach target,$(NO_C),$(eval targets: export CC_$(target) = true))
$(foreach target,$(NO_C),$(eval targets: export AR_$(target) = true))
targets:
	@check() { \
		if [ -d "$$(rustc --print target-libdir --target $$1)" ]; then \
			echo "cargo clippy --quiet --target $$* -- -D warnings"; \
			cargo clippy --quiet --target "$$@" -- -D warnings; \
		else \
			echo "targets: no standard library for $$1, so that target is left out"; \
		fi; \
	}; \
	for target in $(LIBRARY_TARGETS); do check $$target -p f2fs -p f2fs-tree || exit 1; done; \
	for target in $(COMMAND_TARGETS); do check $$target -p flashkit --no-default-features || exit 1; done

## try-targets: build the command for Windows and a 32-bit Linux, and run it there; TARGETS=all adds aarch64, armv7 and a static
## program in an empty root, which need what `scripts/setup release` installs
TARGETS ?=
try-targets:
	scripts/try-targets $(TARGETS)

## try-scale: 40 cells of a study on GNU parallel, Snakemake and Slurm, of which one node is killed; an engine that is missing is
## left out with a message
try-scale:
	scripts/try-scale

# Tests that need the lab's kernel are skipped if it was not built. `make study` builds it, which takes longer than the
# tests.
unit:
	@[ -e var/uml/linux ] || echo 'unit: no kernel for the lab, so its guest is not tested; cargo xtask uml-kernel builds it'
	cargo test --workspace --quiet

## hostile: read golden images with random bytes overlaid; SECONDS=3600 runs for an hour, SEED= tries other
## cases. Without a seed each commit has its own, so that a failure on one machine repeats on the next.
SECONDS ?= 60
SEED ?= $(shell git rev-parse --verify --quiet HEAD | cksum | cut -d' ' -f1)
hostile:
	cargo run --quiet -p fuzz --bin hostile -- --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

## golden: make the golden images again with the kernel
golden: setup
	cargo xtask golden

## install: the program that `cargo build --release --locked -p flashkit` made, its manual, completions, mount helpers and links
## under the names of f2fs-tools; PREFIX= and DESTDIR= choose the place
PREFIX ?= /usr/local
install:
	PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) scripts/install

## deb: a Debian package for the C library of this system and newer ones; scripts/try-deb tries it in a clean tree
deb:
	cargo build --profile dist --locked -p flashkit
	BIN=target/dist/flashkit scripts/deb

## release: build and test all files of a release, in target/release-files: static programs, flashkit.exe, the Debian package, an OCI
## image, check sums; and the packages for crates.io. It needs root.
release:
	scripts/setup release
	scripts/release
