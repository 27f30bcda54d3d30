# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# How much is done in the VM, and limits in virtual time, kicks or calls. They are the stock kernel's: on a debug kernel, where
# code is many times slower, the same is done, less often, for what that kernel sees; it is held to no limit.

debug_kernel() { [[ $(uname -r) == *-k[ac]san ]]; }

# A number of packets or rounds: a tenth on a debug kernel.
some() { if debug_kernel; then echo $(($1 / 10)); else echo "$1"; fi; }

# One result: NAME, and a command that holds the driver to the limit.
limited() {
	local name=$1
	shift
	if debug_kernel; then
		echo "ok $name # SKIP a limit for the stock kernel"
	elif "$@"; then
		echo "ok $name"
	else
		echo "not ok $name"
	fi
}

# NAME VALUE LIMIT
at_most() {
	if [[ $2 =~ ^[0-9]+$ && $3 =~ ^[0-9]+$ ]]; then
		limited "$1: $2, at most $3" [ "$2" -le "$3" ]
	else
		printf 'not ok %s: not a number: %q, or %q\n' "$1" "$2" "$3"
	fi
}
