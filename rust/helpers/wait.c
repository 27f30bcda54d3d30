// SPDX-License-Identifier: GPL-2.0
/*
 * Being told when a file becomes ready, by a callback in its wait queue.
 */
#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/wait.h>
#include <vhost_net_rs/helpers.h>

struct vnr_poll {
	poll_table table;
	wait_queue_entry_t entry;
	/* The queue that entry is in, NULL if in none. */
	wait_queue_head_t *queue;
	struct file *file;
	__poll_t events;
	void (*wake)(void *data);
	void *data;
	/* While one of these bits is set, wake() would change nothing. */
	u32 quiet_bits;
	const atomic_t *quiet_word;
};

static int vnr_poll_woken(wait_queue_entry_t *entry, unsigned int mode,
			  int sync, void *key)
{
	struct vnr_poll *poll = container_of(entry, struct vnr_poll, entry);

	if (!(key_to_poll(key) & poll->events))
		return 0;

	/*
	 * Whoever clears a bit does so before it looks at what made the file
	 * ready: a full barrier between that and our look at the bit, as there
	 * would be in wake(). Pairs with vnr_take_bits().
	 */
	smp_mb();
	if (!(atomic_read(poll->quiet_word) & poll->quiet_bits))
		poll->wake(poll->data);

	return 0;
}

/* No bits. */
static const atomic_t vnr_poll_never_quiet = ATOMIC_INIT(0);

static void vnr_poll_queue(struct file *file, wait_queue_head_t *queue,
			   poll_table *table)
{
	struct vnr_poll *poll = container_of(table, struct vnr_poll, table);

	/* There is one entry: it cannot be in a second queue. */
	if (poll->queue)
		return;

	poll->queue = queue;
	add_wait_queue(queue, &poll->entry);
}

struct vnr_poll *vnr_poll_alloc(struct file *file, u32 events,
				void (*wake)(void *data), void *data)
{
	struct vnr_poll *poll = kzalloc(sizeof(*poll), GFP_KERNEL);

	if (!poll)
		return NULL;

	init_poll_funcptr(&poll->table, vnr_poll_queue);
	init_waitqueue_func_entry(&poll->entry, vnr_poll_woken);
	poll->file = file;
	poll->events = (__force __poll_t)events;
	poll->wake = wake;
	poll->data = data;
	poll->quiet_word = &vnr_poll_never_quiet;

	return poll;
}

void vnr_poll_quiet_while(struct vnr_poll *poll, const atomic_t *word,
			  u32 bits)
{
	poll->quiet_word = word;
	poll->quiet_bits = bits;
}

void vnr_poll_free(struct vnr_poll *poll)
{
	if (poll)
		vnr_poll_stop(poll);
	kfree(poll);
}

int vnr_poll_start(struct vnr_poll *poll, bool in_error_too)
{
	__poll_t mask;

	if (poll->queue)
		return 1;

	mask = vfs_poll(poll->file, &poll->table);
	if (mask & poll->events)
		poll->wake(poll->data);

	if (mask & EPOLLERR && !in_error_too) {
		vnr_poll_stop(poll);
		return -EINVAL;
	}

	return !!poll->queue;
}

void vnr_poll_stop(struct vnr_poll *poll)
{
	if (!poll->queue)
		return;

	remove_wait_queue(poll->queue, &poll->entry);
	poll->queue = NULL;
}
