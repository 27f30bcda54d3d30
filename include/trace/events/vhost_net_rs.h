/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints. Each has the device's number, as vhost-device in fdinfo, and all
 * but the workers' the vring: 0 is rx, 1 is tx. A reason is the name of the
 * fdinfo key that counts it.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM vhost_net_rs

#if !defined(_TRACE_VHOST_NET_RS_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_VHOST_NET_RS_H

#include <linux/tracepoint.h>

DECLARE_EVENT_CLASS(vnr_vring,
	TP_PROTO(u64 device, u32 vring),
	TP_ARGS(device, vring),
	TP_STRUCT__entry(
		__field(u64, device)
		__field(u32, vring)
	),
	TP_fast_assign(
		__entry->device = device;
		__entry->vring = vring;
	),
	TP_printk("device=%llu vring=%s", __entry->device,
		  __entry->vring ? "tx" : "rx")
);

/* The driver kicked. */
DEFINE_EVENT(vnr_vring, kick,
	TP_PROTO(u64 device, u32 vring),
	TP_ARGS(device, vring)
);

/* A run of the loop begins. */
DEFINE_EVENT(vnr_vring, run_begin,
	TP_PROTO(u64 device, u32 vring),
	TP_ARGS(device, vring)
);

/* The driver is called. */
DEFINE_EVENT(vnr_vring, call_made,
	TP_PROTO(u64 device, u32 vring),
	TP_ARGS(device, vring)
);

/* Used buffers were published, and the driver wants no call. */
DEFINE_EVENT(vnr_vring, call_suppressed,
	TP_PROTO(u64 device, u32 vring),
	TP_ARGS(device, vring)
);

/* A run ended; so many packets and bytes were moved since it began. */
TRACE_EVENT(run_end,
	TP_PROTO(u64 device, u32 vring, const char *reason, u64 packets,
		 u64 bytes),
	TP_ARGS(device, vring, reason, packets, bytes),
	TP_STRUCT__entry(
		__field(u64, device)
		__field(u32, vring)
		__string(reason, reason)
		__field(u64, packets)
		__field(u64, bytes)
	),
	TP_fast_assign(
		__entry->device = device;
		__entry->vring = vring;
		__assign_str(reason);
		__entry->packets = packets;
		__entry->bytes = bytes;
	),
	TP_printk("device=%llu vring=%s reason=%s packets=%llu bytes=%llu",
		  __entry->device, __entry->vring ? "tx" : "rx",
		  __get_str(reason), __entry->packets, __entry->bytes)
);

/* A window for busy polling opens, for so long at most. */
TRACE_EVENT(poll_begin,
	TP_PROTO(u64 device, u32 vring, u64 window_ns),
	TP_ARGS(device, vring, window_ns),
	TP_STRUCT__entry(
		__field(u64, device)
		__field(u32, vring)
		__field(u64, window_ns)
	),
	TP_fast_assign(
		__entry->device = device;
		__entry->vring = vring;
		__entry->window_ns = window_ns;
	),
	TP_printk("device=%llu vring=%s window_ns=%llu", __entry->device,
		  __entry->vring ? "tx" : "rx", __entry->window_ns)
);

/* It ended, after so long. */
TRACE_EVENT(poll_end,
	TP_PROTO(u64 device, u32 vring, const char *reason, u64 ns),
	TP_ARGS(device, vring, reason, ns),
	TP_STRUCT__entry(
		__field(u64, device)
		__field(u32, vring)
		__string(reason, reason)
		__field(u64, ns)
	),
	TP_fast_assign(
		__entry->device = device;
		__entry->vring = vring;
		__assign_str(reason);
		__entry->ns = ns;
	),
	TP_printk("device=%llu vring=%s reason=%s ns=%llu", __entry->device,
		  __entry->vring ? "tx" : "rx", __get_str(reason), __entry->ns)
);

DECLARE_EVENT_CLASS(vnr_counted,
	TP_PROTO(u64 device, u32 vring, const char *reason, u64 count),
	TP_ARGS(device, vring, reason, count),
	TP_STRUCT__entry(
		__field(u64, device)
		__field(u32, vring)
		__string(reason, reason)
		__field(u64, count)
	),
	TP_fast_assign(
		__entry->device = device;
		__entry->vring = vring;
		__assign_str(reason);
		__entry->count = count;
	),
	TP_printk("device=%llu vring=%s reason=%s count=%llu", __entry->device,
		  __entry->vring ? "tx" : "rx", __get_str(reason),
		  __entry->count)
);

/* Packets are lost. */
DEFINE_EVENT(vnr_counted, drop,
	TP_PROTO(u64 device, u32 vring, const char *reason, u64 count),
	TP_ARGS(device, vring, reason, count)
);

/* The ring is broken, a translation is missing, or a log cannot be written. */
DEFINE_EVENT(vnr_counted, error,
	TP_PROTO(u64 device, u32 vring, const char *reason, u64 count),
	TP_ARGS(device, vring, reason, count)
);

/* A process became the owner, and has a worker now. */
TRACE_EVENT(worker_create,
	TP_PROTO(u64 device, int owner),
	TP_ARGS(device, owner),
	TP_STRUCT__entry(
		__field(u64, device)
		__field(int, owner)
	),
	TP_fast_assign(
		__entry->device = device;
		__entry->owner = owner;
	),
	TP_printk("device=%llu owner=%d", __entry->device, __entry->owner)
);

/* The worker is gone; 0 if it never ran. */
TRACE_EVENT(worker_exit,
	TP_PROTO(u64 device, int worker),
	TP_ARGS(device, worker),
	TP_STRUCT__entry(
		__field(u64, device)
		__field(int, worker)
	),
	TP_fast_assign(
		__entry->device = device;
		__entry->worker = worker;
	),
	TP_printk("device=%llu worker=%d", __entry->device, __entry->worker)
);

#endif /* _TRACE_VHOST_NET_RS_H */

/* This must be outside the protection. */
#include <trace/define_trace.h>
