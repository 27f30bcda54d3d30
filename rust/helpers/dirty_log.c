// SPDX-License-Identifier: GPL-2.0
/*
 * The owner's map of the guest's dirty pages.
 */
#include <linux/highmem.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <vhost_net_rs/helpers.h>

int vnr_log_pages(u64 bitmap, u64 page, u64 count)
{
	/*
	 * What was written to the pages is seen before their bits. Pairs with
	 * the owner's barrier between taking the bits and reading the pages.
	 */
	smp_wmb();

	while (count) {
		u64 addr = bitmap + page / 8;
		u64 bit = offset_in_page(addr) * 8 + page % 8;
		u64 end = min(bit + count, PAGE_SIZE * 8);
		struct page *pinned;
		void *map;

		if (pin_user_pages_fast(addr, 1, FOLL_WRITE, &pinned) != 1)
			return -EFAULT;

		page += end - bit;
		count -= end - bit;
		map = kmap_local_page(pinned);
		/* Also a bit that is set: the owner may be taking it. */
		for (; bit < end; bit++)
			set_bit(bit, map);
		kunmap_local(map);
		unpin_user_pages_dirty_lock(&pinned, 1, true);
	}

	return 0;
}
