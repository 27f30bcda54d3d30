# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Runs a guest on the vhost-net device of a VM (scripts/vm --nested). Sourced, in the VM, by the scripts beside it.

# A script may change these before it starts a guest.
GUEST_DIR=/run/guest # the guest's and QEMU's files
TAP=tap0             # its tap, to be made
BRIDGE=''            # the bridge for that tap; without one the tap has the VM's address
QUEUES=1             # pairs of queues; the guest has as many CPUs
GUEST_NETDEV=''      # more properties of QEMU's end of the tap, each with a comma before it
GUEST_CARD=''        # more properties of its network card, likewise
GUEST_KERNEL=''      # more of its kernel's command line
GUEST_IP=10.0.0.2 VM_IP=10.0.0.1

# How many times less is done and longer waited for on a debug kernel.
if [[ $(uname -r) == *-kasan ]]; then SLOW=8; else SLOW=1; fi

# Starts a guest with the polling window $1 in microseconds (0: none) and any more arguments of QEMU's. Waits for the boot.
guest_start() { guest_launch "$@" && guest_ready; }

# The same without the wait.
guest_launch() {
	local window=$1 queues='' machine=q35 serial=() port
	shift
	NETDEV=tap,id=n0,ifname=$TAP,script=no,downscript=no,vhost=on$GUEST_NETDEV
	CARD=virtio-net-pci,id=card,netdev=n0,romfile=,mac=52:54:00:12:34:56$GUEST_CARD
	[ "$window" -eq 0 ] || NETDEV+=,poll-us=$window
	if [ "$QUEUES" -gt 1 ]; then queues=multi_queue NETDEV+=,queues=$QUEUES CARD+=,mq=on; fi
	rm -rf "$GUEST_DIR"
	mkdir -p "$GUEST_DIR"
	mkfifo "$GUEST_DIR"/{commands,monitor}.{in,out}
	exec {guest_in}<>"$GUEST_DIR/commands.in" {guest_out}<>"$GUEST_DIR/commands.out"
	exec {to_monitor}<>"$GUEST_DIR/monitor.in" {from_monitor}<>"$GUEST_DIR/monitor.out"
	# As in the guest's init.
	echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
	echo 8388608 | tee /proc/sys/net/core/[rw]mem_max >/dev/null
	echo pfifo_fast >/proc/sys/net/core/default_qdisc
	ip tuntap add "$TAP" mode tap vnet_hdr $queues
	if [ -n "$BRIDGE" ]; then ip link set "$TAP" master "$BRIDGE"; else ip address add $VM_IP/24 dev "$TAP"; fi
	ip link set "$TAP" up
	[ $SLOW -eq 1 ] || machine+=,kernel-irqchip=split # the kasan kernel has no KVM_IOAPIC
	for port in commands monitor; do serial+=(-chardev "pipe,id=$port,path=$GUEST_DIR/$port"); done
	qemu-system-x86_64 -accel kvm -cpu host -M "$machine" -smp "$QUEUES" -m 256,slots=2,maxmem=1G -nodefaults -no-user-config -display none \
		-kernel /guest/vmlinuz -initrd /guest/initrd -append "console=ttyS0 loglevel=5 panic=-1 $GUEST_KERNEL" \
		"${serial[@]}" -serial "file:$GUEST_DIR/console" -serial chardev:commands -mon chardev=monitor,mode=control \
		"$@" -netdev "$NETDEV" -device "$CARD" >"$GUEST_DIR/qemu" 2>&1 &
	QEMU=$!
	echo '{"execute": "qmp_capabilities"}' >&"$to_monitor"
}

# Waits until the guest has booted, again or for the first time, and brings its network card up.
guest_ready() {
	local line try
	# On a busy host the VM's clock may run many times too fast: what counts is that QEMU lives.
	for ((try = 0; try < 20; try++)); do
		while read -r -t 30 -u "$guest_out" line; do
			[ "${line%$'\r'}" = ::ready ] || continue
			TAP_BASE=$(tap_counters) # what came before is no business of this guest
			guest_card_up
			return
		done
		[ -e "/proc/$QEMU/exe" ] || { qemu_ended; return 1; }
	done
	echo "the guest did not boot"
	return 1
}

# Says how a QEMU ended that should not have.
qemu_ended() {
	wait "$QEMU"
	echo "QEMU ended with status $?: $(tail -n 5 "$GUEST_DIR/qemu" | paste -sd ' ')"
}

# Brings a network card up that has just appeared in the guest.
guest_card_up() { guest "ip address add $GUEST_IP/24 dev eth0 && ip link set eth0 up"; }

# Sends the guest a command that it will not answer, again and again until it has it whole.
guest_command() {
	local line hash try
	NUMBER=${EPOCHREALTIME//[!0-9]/} # no count: subshells send commands too
	hash=$(echo "$*" | sha256sum | cut -c1-16)
	for ((try = 1; try <= 20; try++)); do
		printf '\n%s %s %s\n' "$NUMBER" "$hash" "$*" >&"$guest_in"
		while read -r -t 15 -u "$guest_out" line; do
			[ "${line%$'\r'}" != "::got $NUMBER" ] || return 0
		done
		[ -e "/proc/$QEMU/exe" ] || { echo "QEMU has ended"; return 1; }
		! grep -s 'KVM internal error' "$GUEST_DIR/qemu" || return 1
	done
	echo "the guest did not get '$*' in 20 tries"
	return 1
}

# Runs a command in the guest: its output, its status. 124 if there is no answer.
guest() {
	local line
	guest_command "$*" || return 124
	while read -r -t $((90 * SLOW)) -u "$guest_out" line; do
		line=${line%$'\r'}
		if [[ $line =~ ^(.*)::$NUMBER\ ([0-9]+)$ ]]; then
			[ -z "${BASH_REMATCH[1]}" ] || printf '%s\n' "${BASH_REMATCH[1]}"
			return "${BASH_REMATCH[2]}"
		fi
		[[ $line != "::got "* ]] || continue
		printf '%s\n' "$line"
	done
	echo "the guest does not answer"
	return 124
}

# Runs a command in the guest until it succeeds.
guest_until() {
	guest "n=0; until { $*; } >/dev/null 2>&1; do n=\$((n + 1)); [ \$n -lt $((300 * SLOW)) ] || exit 1; usleep 100000; done" ||
		{ echo "in the guest this did not come true: $*"; return 1; }
}

# A command for QEMU's monitor, as a human would type it; through QMP, which does not echo.
monitor() { printf '{"execute": "human-monitor-command", "arguments": {"command-line": "%s"}}\n' "${*//\"/\\\"}" >&"$to_monitor"; }

# asked COMMAND PATTERN: what matches the parentheses of PATTERN in the monitor's answer, which is one line.
asked() {
	local line
	while read -r -t 0.01 -u "$from_monitor" _; do :; done
	monitor "$1"
	while read -r -t 60 -u "$from_monitor" line; do
		[[ ! $line =~ $2 ]] || { echo "${BASH_REMATCH[1]}"; return; }
	done
	echo "no answer"
}

# Shuts the guest down; 0 if QEMU ends by itself and well.
guest_stop() {
	local n=0
	guest_command 'poweroff -f'
	while [ -e "/proc/$QEMU/exe" ] && [ $n -lt $((300 * SLOW)) ]; do n=$((n + 1)); usleep 100000; done
	[ $n -lt $((300 * SLOW)) ] || { echo "QEMU is still there $((30 * SLOW)) s after the guest's poweroff"; kill -9 "$QEMU"; }
	wait "$QEMU" || { echo "QEMU ended with status $?"; cat "$GUEST_DIR/qemu"; return 1; }
	exec {guest_in}>&- {guest_out}>&- {to_monitor}>&- {from_monitor}>&-
	ip link del "$TAP"
}

# What to read when a guest is in trouble: the last words of guest and QEMU; the worker; the module's counters, if it has any.
guest_logs() {
	tail -n 20 "$GUEST_DIR/console" "$GUEST_DIR/qemu" 2>/dev/null | tr -d '\r'
	[ ! -e "/proc/$QEMU/exe" ] || cat "$(worker)"/{stat,wchan,stack} 2>/dev/null
	grep -h '^vhost-.*[^0]$' "/proc/$QEMU"/fdinfo/* 2>/dev/null
	local line
	while read -r -t 0.01 -u "$from_monitor" line; do echo "monitor: $line"; done
	cat /proc/loadavg
}

# The workers' threads, as /proc/PID/task/TID: threads of QEMU, or kernel threads. And one of them.
workers() { grep -ls "^vhost-$QEMU\$" "/proc/$QEMU"/task/*/comm /proc/[0-9]*/task/*/comm | sed 's,/comm$,,' | sort -u -t / -k 5; }
worker() { workers | head -n 1; }

# Packets and bytes that went through since the guest booted, by its own count and by the tap's; both as
# "TO-VM-PACKETS BYTES TO-GUEST-PACKETS BYTES".
# shellcheck disable=SC2016 # the guest expands it
guest_counts() { guest 'cd /sys/class/net/eth0/statistics; echo $(cat tx_packets tx_bytes rx_packets rx_bytes)'; }
tap_counters() { (cd "/sys/class/net/$TAP/statistics" && cat rx_packets rx_bytes tx_packets tx_bytes); }
tap_counts() { paste <(tap_counters) <(echo "$TAP_BASE") | awk '{ printf "%s%d", sep, $1 - $2; sep = " " } END { print "" }'; }

# The two must come to agree: the guest counts a sent packet when it takes the buffer back.
counts_agree() {
	local n=0
	until [ "$(guest_counts)" = "$(tap_counts)" ]; do
		n=$((n + 1))
		[ $n -lt 20 ] || return
		usleep 100000
	done
}
