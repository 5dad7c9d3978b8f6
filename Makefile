# What to run: `make setup`, then any of the others. Each is a line that can be typed by hand too.

# Where rustup puts cargo, for a shell that has not been told yet, and before an older one of the distribution.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: setup programs test study bench lint unit hostile golden

## setup: install what is missing on Debian or Ubuntu
setup:
	scripts/setup

# The same without the judge's kernel, for which xtask has to be compiled.
programs:
	scripts/setup programs

## test: everything that has to hold, virtual machines included; what a machine cannot run says that it is left out
test: setup lint unit hostile

## study: the experiments on every file system, on one modelled card: our own first, since it needs no kernel, while the
## lab's kernel is built where there is none (where it cannot be, that is said, and the rivals run in QEMU, or are left out
## where there is no QEMU); then a real tree becomes a volume, which fsck.f2fs and Linux judge, beside other tools
study: programs
	cargo build --release -p flashkit -p xtask
	target/release/xtask study

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
