// SPDX-License-Identifier: GPL-2.0
/*
 * Numbers that are read without a lock: each is whole, the set is not.
 */
#include <linux/compiler.h>
#include <vhost_net_rs/helpers.h>

void vnr_snapshot_write(u64 *to, const u64 *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		WRITE_ONCE(to[i], from[i]);
}

void vnr_snapshot_read(u64 *to, const u64 *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = READ_ONCE(from[i]);
}
