# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# What the tests with a guest have in common. Sourced, in the VM, by the scripts beside it, which then set "driver" (c or
# rust) and "title", with which all names of results begin.

# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh" || exit
driver='' title=''
failed=0 # 1 after "not ok"

# expect NAME COMMAND...: a result line, and what the command printed if it failed. A guest that is dead ends the test.
expect() {
	local name="$title: $1"
	shift
	if "$@" >/run/output 2>&1; then echo "ok $name"; return; fi
	echo "not ok $name: $(head -n 1 /run/output)" # the reason is what is left where only such lines are kept
	sed 's/^/  /' /run/output
	guest_logs >/run/logs
	sed 's/^/  /' /run/logs
	! grep -qsE 'KVM internal error. Suberror: 3|"guest-reset"' /run/logs "$GUEST_DIR/qemu" || touch /run/emulator
	# shellcheck disable=SC2034 # the exit status of those who source this
	failed=1
	guest true >/dev/null || exit 1
}

# again COMMAND...: runs it; anew, twice at most, where the emulated CPU was what failed. A guest's exception leaves its kind
# there for the guest's next exit, where QEMU's emulator (target/i386/tcg) forgets to clear it; KVM takes that for an event that
# was interrupted (svm_check_emulate_instruction), and cannot go on if the exit is an access to a device: neither has to do with
# who serves the device. And where a guest began anew by itself without a word, which is not explained, but rare.
again() {
	local try status
	for ((try = 1; ; try++)); do
		rm -f /run/emulator
		: >/run/held
		"$@" 2>&1 | awk '/^not ok/ { held = 1 } held { print >"/run/held"; next } { print; fflush() }'
		status=${PIPESTATUS[0]}
		[ "$status" -ne 0 ] && [ -e /run/emulator ] && [ $try -lt 3 ] || break
		echo "# KVM gave the guest up, or the guest reset itself (Documentation/testing.rst): again"
		sed 's/^/# /' /run/held
	done
	cat /run/held
	return "$status"
}

# Says what was found instead; for the conditions below.
found() { echo "found: $*"; return 1; }

driver_in_use() {
	local module=vhost_net other=vhost_net_rs
	[ "$driver" = c ] || { module=vhost_net_rs other=vhost_net; }
	awk -v m=$module -v o=$other '$1 == m && $3 > 0 { used = 1 } $1 == o { wrong = 1 } END { exit !used || wrong }' /proc/modules ||
		found "$(grep vhost /proc/modules)" || return
	[ "$(workers | wc -l)" -eq "$QUEUES" ] || found "workers: $(workers); threads: $(cat "/proc/$QEMU"/task/*/comm | paste -sd ' ')"
}

# echo_replies WHERE: how many answers to its pings have come to the "guest", or to the VM ("command").
echo_replies() { $1 cat /proc/net/snmp | awk '/^Icmp:/ { if (column) print $column; for (i = 1; i <= NF; i++) if ($i == "InEchoReps") column = i }'; }

# pings BYTES: eight each way. The first finds the other's address, which may take longer than its answer is waited for;
# and ping waits for the last one twice as long as for the others, so the kernel is asked what came.
pings() {
	local where to before line n
	ping -c 1 "$GUEST_IP" >/dev/null
	for where in guest command; do
		[ $where = guest ] && to=$VM_IP || to=$GUEST_IP
		before=$(echo_replies $where)
		line=$($where ping -c 8 -i 0.1 -W 30 -s "$1" "$to")
		for ((n = 0; n < 300 / SLOW && $(echo_replies $where) < before + 8; n++)); do usleep 100000; done
		[ $n -lt $((300 / SLOW)) ] ||
			found "$(($(echo_replies $where) - before)) of 8 came back; guest $(guest_counts), tap $(tap_counts): $line" || return
	done
}

# A file goes each way at the same time and must arrive as it was. Not over one connection: nc does not read while it
# writes. One that receives must have a stdin that does not end.
files() {
	local ours theirs receiver sender
	head -c 1000000 /dev/urandom >/tmp/ours
	guest 'head -c 1000000 /dev/urandom >/tmp/theirs'
	[ -p /tmp/hold ] || mkfifo /tmp/hold
	timeout $((70 * SLOW)) nc -l -p 5000 >/tmp/theirs 0<>/tmp/hold &
	receiver=$!
	timeout $((70 * SLOW)) nc -l -p 5001 </tmp/ours &
	sender=$!
	usleep 300000
	guest "[ -p /tmp/hold ] || mkfifo /tmp/hold; timeout $((60 * SLOW)) nc $VM_IP 5000 </tmp/theirs & timeout $((60 * SLOW)) nc $VM_IP 5001 >/tmp/ours 0<>/tmp/hold; wait" | grep . # what it says is trouble
	wait $receiver $sender
	ours=$(sha256sum </tmp/ours) theirs=$(sha256sum </tmp/theirs)
	[ "$(guest 'sha256sum </tmp/ours')" = "$ours" ] || found "the VM's file arrived as $(guest 'wc -c </tmp/ours') bytes that differ" || return
	[ "$(guest 'sha256sum </tmp/theirs')" = "$theirs" ] || found "the guest's file arrived as $(wc -c </tmp/theirs) bytes that differ"
}

# from_guest and to_guest: one line of iperf's with what the ends counted, for traffic that way.
from_guest() { guest "sh /iperf -c $VM_IP $*"; }
to_guest() { sh "$(dirname "$0")/iperf" -c "$GUEST_IP" "$@"; }

# What iperf3 says was sent may lack one write, as the thread that asks is not the one that sends.

# tcp WAY BYTES: iperf3 does not wait for what is in flight at the end, so half of it will do; see files for all of it. Of
# the few bytes on a debug kernel all could be in flight.
tcp() {
	local line sent received size=131072 buffer=()
	[ $SLOW -eq 1 ] || buffer=(-w 256K)
	line=$($1 -l $size "${buffer[@]}" -n "$2") || found "$line" || return
	read -r sent received _ <<<"$line"
	[[ $sent -ge $2 && $received -le $((sent + size)) && $received -ge $((sent / 2)) ]] || found "$sent bytes sent, $received received"
}

# arrived WAY: how many packets the receiver's end of the wire has had.
arrived() { if [ "$1" = from_guest ]; then cat "/sys/class/net/$TAP/statistics/rx_packets"; else guest 'cat /sys/class/net/eth0/statistics/rx_packets'; fi; }
tap_drops() { cat "/sys/class/net/$TAP/statistics/"[rt]x_dropped | paste -sd ' '; }

# udp WAY BYTES: a transfer that fits in the tap's queue, so all of it must arrive. iperf3's receiver ends before what is in
# flight comes in, and what its socket has then is in no protocol's count, so the wire is asked; same_counts compares its ends.
udp() {
	local line sent received size=1400 before after drops try
	before=$(arrived "$1") drops=$(tap_drops)
	line=$($1 -u -w 4M -b 8M -l $size -n "$2") || found "$line" || return
	read -r sent received _ <<<"$line"
	for ((try = 0; try < 50; try++)); do
		after=$(arrived "$1")
		[ $((after - before)) -lt $((sent / size)) ] || break
		usleep 200000
	done
	[[ $sent -ge $2 && $((after - before)) -ge $((sent / size)) && $received -le $((sent + size)) && $((received % size)) -eq 0 && $(tap_drops) = "$drops" ]] ||
		found "$sent bytes sent, $received received by iperf3, $((after - before)) packets of $((sent / size)); tap drops $(tap_drops), $drops before"
}

same_counts() { counts_agree || found "guest $(guest_counts); tap $(tap_counts) (to VM: packets, bytes; to guest: packets, bytes)"; }

guest_uptime() { guest 'cut -d. -f1 /proc/uptime'; }

# restarted reboot|reset: from inside, or from outside under traffic.
restarted() {
	local restart=$1 before=$QEMU traffic uptime start=$SECONDS
	uptime=$(guest_uptime)
	if [ "$restart" = reboot ]; then
		guest_command 'reboot -f'
	else
		guest "iperf3 -c $VM_IP -t 60 >/dev/null 2>&1 &"
		ping -f -c 100000 "$GUEST_IP" >/dev/null 2>&1 &
		traffic=$!
		sleep 1
		monitor system_reset
	fi
	guest_ready || return
	if [ -n "$traffic" ]; then kill "$traffic"; wait "$traffic"; fi
	[[ -e /proc/$before/exe && $(guest_uptime) -lt $((uptime + SECONDS - start)) ]] || found "QEMU $before is gone, or the guest did not start anew"
}

driver_is_free() { awk '/^vhost_net/ && $3 > 0 { print; used = 1 } END { exit used }' /proc/modules || found "the driver is still in use"; }

stopped() { guest_stop && driver_is_free; }

# Neither "BUG:" and the like, nor a word of the driver's: it only speaks of trouble. In the logs of all QEMUs that had it.
guest_log_clean() {
	local all=${GUEST_DIR%/*}/consoles
	cat "${GUEST_DIR%/*}"/*/console >"$all"
	"$(dirname "$0")/../vm-report" "$all" && ! grep -E 'virtio_net|eth0|WATCHDOG' "$all"
}
