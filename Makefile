# What to run: `make setup`, then any of the others. Each is a line that can be typed by hand too.

# Where rustup puts cargo, for a shell that has not been told yet, and before an older one of the distribution.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: setup test study bench lint unit hostile golden

## setup: install what is missing on Debian or Ubuntu
setup:
	scripts/setup

## test: everything that has to hold, virtual machines included; what a machine cannot run says that it is left out
test: setup lint unit hostile

## study: the experiments on every file system, on one modelled card (the lab's kernel is built first where there is
## none; where it cannot be, the rivals run in QEMU, and where there is no QEMU, our file system alone); then a real tree becomes a volume, which fsck.f2fs and Linux judge, and other tools stand beside it
study: setup
	cargo xtask uml-kernel >/dev/null || cargo xtask stock-guest >/dev/null || true
	cargo run --quiet --release -p flashkit -- study -o var/study/lab
	cargo xtask study

## bench: what flashkit costs, side by side with peers in one run
bench: setup
	cargo xtask bench

lint:
	cargo fmt --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	cargo xtask spec --check

# What needs the lab's kernel is left out where that was not built: `make study` builds it, which takes longer than the
# tests.
unit:
	@[ -e var/uml/linux ] || echo 'unit: no kernel for the lab, so its guest is not tested; cargo xtask uml-kernel builds it'
	cargo test --workspace --quiet

## hostile: read golden images with random bytes overlaid; SECONDS=3600 goes on for an hour, SEED= tries other
## cases. Without a seed each commit has its own, so that what fails on one machine fails on the next.
SECONDS ?= 60
SEED ?= $(shell git rev-parse --verify --quiet HEAD | cksum | cut -d' ' -f1)
hostile:
	cargo run --quiet -p fuzz --bin hostile -- --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

## golden: make the golden images anew with the kernel
golden: setup
	cargo xtask golden
