# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# What the scripts share: messages, the place of the checkout and of the cache. Sourced, not run.

# shellcheck disable=SC2034  # used by those who source this file
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/vhost_net_rs
SELF=${0##*/}

# One line about what is going on, with the seconds since the script started.
step() { printf '[%3ds] %s: %s\n' "$SECONDS" "$SELF" "$*" >&2; }

# Ends with status 1, or with that of DIE_STATUS. Each further argument is a line that says what to do.
die() {
	printf '%s: error: %s\n' "$SELF" "$1" >&2
	shift
	[ $# -eq 0 ] || printf '    %s\n' "$@" >&2
	exit "${DIE_STATUS:-1}"
}

# Prints the comment block at the top of a script: its manual.
usage() { sed -n '3,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

need_root() {
	[ "$(id -u)" -eq 0 ] || die "must run as root: it makes mounts and changes its root folder" \
		"Run it again as root (sudo -E keeps XDG_CACHE_HOME), or in a container that has root."
}

# Installs Debian packages on the host for programs or files that are missing: need_host PROGRAM:PACKAGE...
need_host() {
	local pair missing=()
	for pair; do
		command -v "${pair%%:*}" >/dev/null || [ -e "${pair%%:*}" ] || missing+=("${pair#*:}")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null || die "this host lacks: ${missing[*]}" "Install them with the host's own package manager."
	need_root
	step "installing on this host: ${missing[*]}"
	{ DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" ||
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"; }; } >&2 </dev/null ||
		die "apt-get could not install: ${missing[*]}" "Its own message is above. Without network, install them some other way."
}
