// SPDX-License-Identifier: GPL-2.0
/*
 * Pending work: a word of bits in each item, and the list of the items whose
 * word is not empty.
 */
#include <linux/atomic.h>
#include <linux/llist.h>
#include <vhost_net_rs/helpers.h>

u32 vnr_fetch_or(atomic_t *word, u32 bits)
{
	return atomic_fetch_or(bits, word);
}

u32 vnr_take_bits(atomic_t *word)
{
	return atomic_xchg(word, 0);
}

void vnr_list_add(struct llist_head *list, struct llist_node *node)
{
	llist_add(node, list);
}

struct llist_node *vnr_list_take(struct llist_head *list)
{
	return llist_reverse_order(llist_del_all(list));
}
