# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# What the tests with vhost-load have in common, in the VM: C's driver is at /dev/vhost-net, ours at /dev/vhost-net-rs.

. /limits.sh

# Makes what the backends need: veth0 with mvt0 and ipvt0 on it, its peer veth1; pkt0 and pkt1, and xdp0 and xdp1, veths;
# the taps slow0, whose ring is short, and more0, which takes several frames at once (rx-frames).
make_links() {
	local dev
	for dev in veth pkt xdp; do ip link add ${dev}0 type veth peer name ${dev}1; done
	ip link add link veth0 name mvt0 type macvtap mode bridge
	# A port of its own: an interface has macvtaps or ipvtaps.
	ip link add ipv0 type veth peer name ipv1
	ip link add link ipv0 name ipvt0 type ipvtap mode l2
	ip tuntap add dev slow0 mode tap vnet_hdr
	ip tuntap add dev more0 mode tap vnet_hdr
	for dev in veth0 veth1 pkt0 pkt1 xdp0 xdp1 ipv0 ipv1 mvt0 ipvt0 slow0 more0; do
		echo 1 >/proc/sys/net/ipv6/conf/$dev/disable_ipv6
	done
	ip addr add 192.0.2.1/32 dev ipvt0
	ip link set slow0 txqueuelen 64
	# The default drops what has waited too long.
	tc qdisc replace dev slow0 root pfifo limit 256
	ethtool -C more0 rx-frames 16
	for dev in veth0 veth1 pkt0 pkt1 xdp0 xdp1 ipv0 ipv1 mvt0 ipvt0; do ip link set $dev up; done
}

# Turns the name of a backend into options.
backend() {
	case $1 in
	tap | tun) echo "--backend $1" ;;
	macvtap) echo "--backend macvtap --ifname mvt0 --wire veth1" ;;
	ipvtap) echo "--backend ipvtap --ifname ipvt0 --wire ipv1" ;;
	packet) echo "--backend packet --ifname pkt0 --wire pkt1" ;;
	redirect) echo "--xdp redirect --via xdp0 --wire xdp1" ;;
	esac
}

# What must be the same, of a line of results.
verified() {
	local word
	for word in $1; do
		case $word in mode=* | packets=* | bytes=* | verified=* | lost=* | reordered=* | corrupted=* | duplicated=* | result=*) printf '%s ' "$word" ;; esac
	done
}

# Has long runs of vhost-load be shorter on a debug kernel: the options in $run.
shorter() {
	local i
	for i in "${!run[@]}"; do
		[[ ${run[i]} != --count || ${run[i + 1]} -le 2000 ]] || run[i + 1]=$(some "${run[i + 1]}")
	done
}

# Runs lines of options, read from standard input, on both drivers: both must say that all is well, and the same.
both() {
	local run c ours
	while read -r -a run; do
		shorter
		c=$(vhost-load "${run[@]}" 2>&1)
		ours=$(vhost-load "${run[@]}" --device /dev/vhost-net-rs 2>&1)
		if [[ $(verified "$ours") == *"result=OK "* && $(verified "$ours") == "$(verified "$c")" ]]; then
			echo "ok load: ${run[*]}"
		else
			printf 'not ok load: %s\n#   C:    %s\n#   ours: %s\n' "${run[*]}" "$c" "$ours"
		fi
	done
}

# Runs lines of options on ours, where what C does depends on luck.
ours() {
	local run out
	while read -r -a run; do
		shorter
		out=$(vhost-load "${run[@]}" --device /dev/vhost-net-rs 2>&1)
		if [[ $(verified "$out") == *"result=OK "* ]]; then
			echo "ok load: ours: ${run[*]}"
		else
			printf 'not ok load: ours: %s\n#   %s\n' "${run[*]}" "$out"
		fi
	done
}

# As above, for what C gets wrong: its fault must show, or the test is blind; ours must be right.
ours_alone() {
	local run c ours
	while read -r -a run; do
		c=$(vhost-load "${run[@]}" --stall 2 2>&1)
		ours=$(vhost-load "${run[@]}" --device /dev/vhost-net-rs 2>&1)
		if [[ $(verified "$ours") == *"result=OK "* && $(verified "$c") == *"result=FAILED "* ]]; then
			echo "ok load: C fails, ours does not: ${run[*]}"
		else
			printf 'not ok load: C fails, ours does not: %s\n#   C:    %s\n#   ours: %s\n' "${run[*]}" "$c" "$ours"
		fi
	done
}

# Runs lines of options on ours, each with a fault made on purpose: it must be found.
faults() {
	local run out status
	while read -r -a run; do
		status=0
		out=$(vhost-load "${run[@]}" --stall 2 --device /dev/vhost-net-rs 2>&1) || status=$?
		if [ $status -eq 1 ] && [[ $out == *result=FAILED* ]]; then
			echo "ok load: a fault made on purpose is seen: ${run[*]}"
		else
			printf 'not ok load: a fault made on purpose is seen: %s\n#   %s\n' "${run[*]}" "$out"
		fi
	done
}

# Says whether the kernel log has had nothing since it was cleared, but for what a bridge between taps says.
log_is_empty() {
	local left
	left=$(dmesg | grep -vE '\] (tsc|clocksource|bridge|br-tap[0-9]+|debugfs): |(entered|left) (allmulticast|promiscuous) mode$')
	if [ -z "$left" ]; then
		echo "ok nothing is in the kernel log"
	else
		printf 'not ok nothing is in the kernel log\n#   %s\n' "${left//$'\n'/$'\n'#   }"
	fi
}
