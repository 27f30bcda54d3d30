# SPDX-License-Identifier: GPL-2.0
# For people. What kbuild reads is in Kbuild.

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
KDIR ?=
TIME ?= 600

.PHONY: help
help: ## Show this list
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: sysroot
sysroot: ## Make the Debian root that all else is built and run in; once, 3 minutes
	@scripts/sysroot

.PHONY: module
module: ## Build vhost_net_rs.ko for Debian's stock kernel, or for KDIR=
	@scripts/build-module "$(KDIR)"

.PHONY: demo
demo: ## See it work: a real guest on vhost_net_rs, without and with busy polling
	@scripts/demo

.PHONY: test
test: ## Every test that CI runs, from a bare machine; parts alone: ONLY=host,vm,nested,debug NAME=GLOB
	@scripts/test

.PHONY: test-long
test-long: ## What takes longer: lint proved by planted violations, and all else in scripts/tests/long
	@ONLY=long scripts/test

.PHONY: bench
bench: ## What a packet costs in instructions, C's driver and ours side by side; scripts/bench --quick is shorter
	@scripts/bench

.PHONY: fuzz
fuzz: ## Hostile drivers and owners made of bytes, against the engine: TIME=600 seconds; goes on where it ended
	@scripts/fuzz --seconds "$(TIME)"

.PHONY: lint
lint: ## The house rules: formatting, clippy, unsafe, panic paths, floors, style of C and shell
	@scripts/lint/run

.PHONY: install
install: ## Put it in the place of C's vhost_net on this host, for good: KDIR= DESTDIR= PREFIX= DKMS=yes BUILD=no
	@scripts/install

.PHONY: uninstall
uninstall: ## Take away what "make install" installed: C's vhost_net is back
	@scripts/install --uninstall

.PHONY: fmt
fmt: ## Format all Rust as lint wants it
	@scripts/lint/10-rustfmt --fix

.PHONY: clean
clean: ## Remove what was built in the checkout; the cached root stays
	@scripts/clean
