# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2034,SC2153 # for those who source this; theirs
# What happens to a guest while its traffic goes on, a function each. Sourced by "scenarios".

# EVENT, as in "guests"; as of "counted": what may differ after it; the sentence.
#
# Where the card starts anew, or QEMU reads the tap while the driver does not, QEMU drops what it read; and what a guest
# sends to a link that is down. A guest that makes a ring anew forgets what is in it. QEMU announces a guest that has
# moved with five packets.
EVENTS='
pause    0 0 2        the guest is stopped and continued
link     -1024 0 1000000  the link goes down and up
rings    0 1024 1024  the guest changes the size of its rings, and back
rebind   0 0 2        the guest takes its driver off the card and puts it back
unplug   0 0 2        the card and its tap are unplugged and plugged again
memory   0 0 0        memory is plugged and unplugged; more is plugged, and used
cancel   0 0 0        a migration is begun and cancelled
migrate  5 5 2        the guest is migrated to another QEMU, pings go on
reset    0 0 2        QEMU resets the guest
reboot   0 0 2        the guest reboots
'

# monitor_until COMMAND PATTERN WORD: asks until the answer is WORD.
monitor_until() {
	local n answer
	for ((n = 0; n < 300; n++)); do
		answer=$(asked "$1" "$2")
		[ "$answer" != "$3" ] || return 0
		usleep 200000
	done
	found "QEMU's answer to '$1' is $answer, not $3"
}

pause() {
	monitor stop
	monitor_until "info status" 'VM status: ([a-z]+)' paused || return
	usleep 300000
	monitor cont
}

link() {
	monitor set_link card off
	guest_until '[ "$(cat /sys/class/net/eth0/carrier)" = 0 ]' || return
	usleep 300000
	monitor set_link card on
	guest_until '[ "$(cat /sys/class/net/eth0/carrier)" = 1 ]'
}

rings() {
	local size
	for size in 256 1024; do
		guest "ethtool -G eth0 rx $size tx $size" || return
		guest "ethtool -g eth0" | awk -v n=$size '/Current/ { now = 1 } now && /^[RT]X:/ && $2 == n { good++ } END { exit good != 2 }' ||
			found "$(guest ethtool -g eth0)" || return
		streams_go_on || return
	done
}

rebind() {
	local card
	card=$(guest 'basename $(readlink /sys/class/net/eth0/device)')
	guest "echo $card >/sys/bus/virtio/drivers/virtio_net/unbind" || return
	counts_anew
	guest "echo $card >/sys/bus/virtio/drivers/virtio_net/bind" || return
	guest_card_up
}

workers_gone() {
	local n
	for ((n = 0; n < 100; n++)); do
		[ -n "$(workers)" ] || break
		usleep 100000
	done
	[ -z "$(workers)" ] || found "workers: $(workers)" || return
	driver_is_free
}

unplug() {
	monitor device_del card
	guest_until '[ ! -e /sys/class/net/eth0 ]' || return
	monitor_until 'info network' '"(card|n0):' n0 || return
	monitor netdev_del n0
	workers_gone || return
	counts_anew
	monitor "netdev_add $NETDEV"
	monitor "device_add $CARD"
	guest_until '[ -e /sys/class/net/eth0 ]' || return
	guest_card_up && driver_in_use
}

# memory_plug N KIND: 128 MB, used for KIND (online_movable: not for packets).
memory_plug() {
	guest "echo $2 >/sys/devices/system/memory/auto_online_blocks" || return
	monitor "object_add memory-backend-ram,id=ram$1,size=128M"
	monitor "device_add pc-dimm,id=dimm$1,memdev=ram$1"
	memory_is_more 128000
}

# memory_is_more KB: than the guest has had at its start.
memory_is_more() { guest_until "[ \$(awk '/^MemTotal/ { print \$2 }' /proc/meminfo) -gt $((memory_then + $1)) ]"; }

memory() {
	local used
	memory_then=$(guest "awk '/^MemTotal/ { print \$2 }' /proc/meminfo")
	memory_plug 1 online_movable && streams_go_on || return
	monitor device_del dimm1
	guest_until "[ \$(awk '/^MemTotal/ { print \$2 }' /proc/meminfo) -eq $memory_then ]" || return
	monitor object_del ram1
	streams_go_on && memory_plug 2 online_kernel && streams_go_on || return
	# All memory above 4 GB is new; the kernel takes from there first.
	used=$(guest "awk '/^Node/ { normal = \$4 == \"Normal\" } normal { n[\$1] = \$2 } END { print n[\"managed\"] - n[\"nr_free_pages\"] }' /proc/zoneinfo")
	[ "$used" -gt 50 ] || found "$used pages of it are in use"
}

# migration_becomes STATUS: of the migration that $1 is the way to.
migration_becomes() {
	local n status
	for ((n = 0; n < 600; n++)); do
		status=$(asked "info migrate" '[Ss]tatus: *([a-z-]+)')
		case $status in
		"$1") return ;;
		failed | completed | cancelled | "no answer") break ;;
		esac
		usleep 200000
	done
	found "the migration's status is $status"
}

cancel() {
	monitor migrate_set_parameter max-bandwidth 2M
	monitor 'migrate -d "exec:cat >/dev/null"'
	migration_becomes active && streams_go_on && migration_becomes active || return
	monitor migrate_cancel
	migration_becomes cancelled
}

replies() { grep -c 'bytes from' /run/pings; }
pings_go_on() {
	local before n
	before=$(replies)
	for ((n = 0; n < 300; n++)); do
		[ "$(replies)" -lt $((before + 10)) ] || return 0
		usleep 200000
	done
	found "$(($(replies) - before)) replies; $(tail -n 3 /run/pings)"
}

migrate() {
	local n=0 source=$QEMU said=$GUEST_DIR/qemu from=$from_monitor to=$to_monitor destination_from destination_to pinger
	ping -i 0.2 "$GUEST_IP" >/run/pings 2>&1 &
	pinger=$!
	rm -f /run/incoming
	guest_start_other -incoming unix:/run/incoming
	until [ -S /run/incoming ] || [ $n -eq 300 ]; do n=$((n + 1)); usleep 100000; done
	destination_from=$from_monitor destination_to=$to_monitor from_monitor=$from to_monitor=$to
	monitor migrate_set_parameter max-bandwidth 1G
	monitor migrate_set_parameter downtime-limit 1000
	monitor migrate -d unix:/run/incoming
	migration_becomes completed || return
	QEMU=$source no_errors || return
	monitor quit
	wait "$source" || found "the source ended with status $?: $(cat "$said")" || return
	from_monitor=$destination_from to_monitor=$destination_to
	streams_go_on && pings_go_on || return
	kill -INT $pinger
	wait $pinger
}

reset() {
	streams_end && streams_start && restarted reset || return
	streams_kill
	differ=(0 0 0 0)
	streams_start
}

reboot() {
	streams_end && restarted reboot || return
	differ=(0 0 0 0)
	streams_start
}
