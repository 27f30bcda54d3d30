# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034 # for those who source this
# Two transfers that go on while things happen to the guest, one each way, and counts of packets beside them. Sourced
# by "scenarios"; see files in tests.sh for how nc is used.

# Random bytes, without haste, until /tmp/end is there, none while /tmp/pause is; for both systems' shells.
SOURCE='until [ -e /tmp/end ]; do [ -e /tmp/pause ] || head -c 20000 /dev/urandom; usleep 100000; done'

# Sums are made of what is sent and of what is received.
streams_start() {
	rm -f /tmp/end /tmp/pause /run/hold
	mkfifo /run/hold
	timeout 900 nc -l -p 5000 >/run/theirs 0<>/run/hold &
	streams=($!)
	sh -c "$SOURCE" 2>/dev/null | tee /run/ours | timeout 900 nc -l -p 5001 &
	streams+=($!)
	usleep 300000
	guest "cd /tmp; rm -f end pause hold copy sent.done got.done; echo '$SOURCE' >/tmp/source; mkfifo /tmp/hold /tmp/copy" || return
	guest "(sha256sum </tmp/copy >/tmp/sent; touch /tmp/sent.done) &" || return
	guest "(sh /tmp/source | tee /tmp/copy | timeout 900 nc $VM_IP 5000) >/dev/null 2>&1 &" || return
	guest "(timeout 900 nc $VM_IP 5001 0<>/tmp/hold | sha256sum >/tmp/got; touch /tmp/got.done) >/dev/null 2>&1 &" || return
	streams_go_on
}

received_here() { stat -c %s /run/theirs; }
received_there() { guest cat /sys/class/net/eth0/statistics/rx_bytes; }

# Waits until 60 kB more have arrived at each end.
streams_go_on() {
	local here there n
	here=$(received_here) there=$(received_there)
	for ((n = 0; n < 300; n++)); do
		[[ $(received_here) -lt $((here + 60000)) || $(received_there) -lt $((there + 60000)) ]] || return 0
		usleep 200000
	done
	found "$(($(received_here) - here)) bytes arrived here, $(($(received_there) - there)) there"
}

# All that was sent has arrived as it was.
streams_end() {
	touch /tmp/end
	guest 'touch /tmp/end' || return
	wait "${streams[@]}"
	local here there
	guest_until '[ -e /tmp/sent.done ] && [ -e /tmp/got.done ]' || return
	here=$(sha256sum </run/theirs) there=$(guest cat /tmp/sent)
	[ "$here" = "$there" ] || found "what the guest sent arrived as $(received_here) bytes that differ" || return
	here=$(sha256sum </run/ours) there=$(guest cat /tmp/got)
	[ "$here" = "$there" ] || found "the $(stat -c %s /run/ours) bytes sent to the guest differ from what it got"
}

# The guest is gone, and with it the other ends.
streams_kill() {
	touch /tmp/end
	[ ${#streams[@]} -gt 0 ] || return
	kill "${streams[@]}" 2>/dev/null
	wait "${streams[@]}"
}

# What went through both taps: all of it is this guest's.
tap_counters() {
	local key
	for key in rx_packets rx_bytes tx_packets tx_bytes; do
		cat /sys/class/net/tap[01]/statistics/$key | awk '{ n += $1 } END { print n + 0 }'
	done
}

# The guest's network card counts from 0 from now on. It cannot move a packet yet.
counts_anew() {
	TAP_BASE=$(tap_counters)
	differ=(0 0 0 0)
}

# counted FROM-MIN FROM-MAX TO-MAX: how many packets the taps may have seen that the guest did not, since the last time:
# FROM the guest, at least and at most (less than 0: that only it saw), and TO it. Packets from it that only the taps saw are QEMU's, of 60 bytes, if their
# number is given; where neither may be missing, bytes are compared as well.
counted() {
	local n i now before='' ok
	touch /tmp/pause
	guest touch /tmp/pause || return
	for ((n = 0; n < 50; n++)); do
		now="$(guest_counts) $(tap_counts)"
		read -r -a now_of <<<"$now"
		ok=
		for i in 0 1 2 3; do now_of[i]=$((now_of[i + 4] - now_of[i] - differ[i])); done
		[[ ${now_of[0]} -ge $1 && ${now_of[0]} -le $2 && ${now_of[2]} -ge 0 && ${now_of[2]} -le $3 ]] && ok=1
		[[ $1 -ne $2 || ${now_of[1]} -eq $(($1 * 60)) ]] || ok=
		[[ $3 -ne 0 || ${now_of[3]} -eq 0 ]] || ok=
		[[ -z $ok || $now != "$before" ]] || break
		before=$now
		usleep 200000
	done
	for i in 0 1 2 3; do differ[i]=$((differ[i] + now_of[i])); done
	rm /tmp/pause
	guest rm /tmp/pause || return
	[ "$n" -lt 50 ] || found "more at the taps than at the guest: ${now_of[*]:0:4} (to VM: packets, bytes; to guest: packets, bytes)"
}
