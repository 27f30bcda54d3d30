/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What vhost_net_rs serves beyond the ioctls of <linux/vhost.h>.
 *
 * Documentation/polling.rst says what the values do, Documentation/abi.rst who
 * may use the ioctls and what they answer.
 */
#ifndef _UAPI_LINUX_VHOST_NET_RS_H
#define _UAPI_LINUX_VHOST_NET_RS_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define VHOST_NET_RS 0xB9

/* Polls for the window of VHOST_SET_VRING_BUSYLOOP_TIMEOUT. */
#define VHOST_NET_RS_POLL_FIXED 0
/* As long as that is expected to cost less than to sleep; the window caps it. */
#define VHOST_NET_RS_POLL_ADAPTIVE 1
/* Without a pause, from start_rate on, until stop_idle_us without work. */
#define VHOST_NET_RS_POLL_CONTINUOUS 2

/* Sleep when another task wants the CPU. */
#define VHOST_NET_RS_POLL_COMPETITOR (1 << 0)
/* Sleep when no thread of the owner runs that could make work. */
#define VHOST_NET_RS_POLL_GUEST (1 << 1)

/* The longest stop_idle_us. */
#define VHOST_NET_RS_POLL_MAX_STOP_IDLE 1000000

struct vhost_net_rs_poll {
	/* The vring: 0 for rx, 1 for tx. */
	__u32 index;
	/* VHOST_NET_RS_POLL_FIXED and so on. */
	__u32 policy;
	/* VHOST_NET_RS_POLL_COMPETITOR and so on. */
	__u32 flags;
	/* Continuous: packets per millisecond; 0 is never. */
	__u32 start_rate;
	/* Continuous: microseconds; 0 takes the module's default. */
	__u32 stop_idle_us;
	/* 0 */
	__u32 reserved[3];
};

/* Reads the index, writes the rest. */
#define VHOST_NET_RS_GET_POLL _IOWR(VHOST_NET_RS, 0x01, struct vhost_net_rs_poll)
#define VHOST_NET_RS_SET_POLL _IOW(VHOST_NET_RS, 0x02, struct vhost_net_rs_poll)

#endif /* _UAPI_LINUX_VHOST_NET_RS_H */
