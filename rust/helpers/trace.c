// SPDX-License-Identifier: GPL-2.0
/*
 * The tracepoints, and what Rust calls to hit one that is on.
 */
#define CREATE_TRACE_POINTS
#define CREATE_RUST_TRACE_POINTS
#include <trace/events/vhost_net_rs.h>
