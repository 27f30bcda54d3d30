# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# What the rules share. Sourced, in the top folder of the checkout.

# The files of the project, those not yet committed too: files PATTERN...
# A checkout may belong to the user who called sudo.
files() { git -c safe.directory="$PWD" ls-files --cached --others --exclude-standard -- "$@" | sort -u | while read -r file; do [ ! -f "$file" ] || echo "$file"; done; }

# Ends with 1 if the pipeline printed anything; prints it. Used as: ... | none
none() { if grep .; then exit 1; fi; }
