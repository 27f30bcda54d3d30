/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What bindgen reads.
 */
#include <linux/types.h>
#include <linux/ptr_ring.h>
#include <linux/sched/vhost_task.h>
#include <linux/virtio_ring.h>
#include <trace/events/vhost_net_rs.h>
#include <uapi/linux/vhost_net_rs.h>
#include <vhost_net_rs/helpers.h>
