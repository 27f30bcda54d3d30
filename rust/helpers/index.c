// SPDX-License-Identifier: GPL-2.0
/*
 * Indices that user space chose.
 */
#include <linux/nospec.h>
#include <vhost_net_rs/helpers.h>

u32 vnr_index_nospec(u32 index, u32 size)
{
	return array_index_nospec(index, size);
}
