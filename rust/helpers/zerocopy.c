// SPDX-License-Identifier: GPL-2.0
/*
 * Packets that a socket sends from user memory: who has them, and who is told
 * when it is done.
 */
#include <linux/atomic.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/skbuff.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <vhost_net_rs/helpers.h>

enum {
	VNR_SLOT_FREE,
	/* A packet in flight. */
	VNR_SLOT_BUSY,
	VNR_SLOT_IN_PLACE,
	VNR_SLOT_COPIED,
	/* Whether there is one will never be known: see vnr_zerocopy_lose(). */
	VNR_SLOT_LOST,
};

struct vnr_slot {
	struct ubuf_info ubuf;
	struct vnr_zerocopy *zerocopy;
	atomic_t state;
};

struct vnr_zerocopy {
	/* One of the owner's, one of each packet that may be in flight. */
	refcount_t refs;
	/* Packets in flight. */
	atomic_t in_flight;
	/* enum vnr_listen */
	int listen;
	/* The owner waits here for in_flight to be 0. */
	wait_queue_head_t idle;
	/* Of open; and wake() runs under it. */
	spinlock_t lock;
	bool open;
	void (*wake)(void *data);
	void *data;
	struct vnr_slot slot[VNR_ZEROCOPY_SLOTS];
};

/* A packet may have ended in code of this module. */
static bool vnr_zerocopy_used;

struct vnr_zerocopy *vnr_zerocopy_alloc(void (*wake)(void *data), void *data)
{
	struct vnr_zerocopy *zerocopy = kzalloc(sizeof(*zerocopy), GFP_KERNEL);

	if (!zerocopy)
		return NULL;

	/* Packets may outlive the device, and end in code of this module. */
	if (!try_module_get(THIS_MODULE)) {
		kfree(zerocopy);
		return NULL;
	}
	WRITE_ONCE(vnr_zerocopy_used, true);
	refcount_set(&zerocopy->refs, 1);
	init_waitqueue_head(&zerocopy->idle);
	spin_lock_init(&zerocopy->lock);
	zerocopy->listen = VNR_LISTEN_SOMETIMES;
	zerocopy->open = true;
	zerocopy->wake = wake;
	zerocopy->data = data;

	return zerocopy;
}

/* The last one may be any packet's, in any context. */
static void vnr_zerocopy_put(struct vnr_zerocopy *zerocopy)
{
	if (!refcount_dec_and_test(&zerocopy->refs))
		return;

	kfree(zerocopy);
	/* What is left to run of this module: see vnr_zerocopy_barrier(). */
	module_put(THIS_MODULE);
}

void vnr_zerocopy_close(struct vnr_zerocopy *zerocopy)
{
	unsigned long flags;

	/* Whoever closes may be a wake() of something else. */
	spin_lock_irqsave(&zerocopy->lock, flags);
	zerocopy->open = false;
	spin_unlock_irqrestore(&zerocopy->lock, flags);
	vnr_zerocopy_put(zerocopy);
}

bool vnr_zerocopy_wait(struct vnr_zerocopy *zerocopy)
{
	/* Who ends has nothing left to wait for: the pages are the packets' too. */
	if (current->flags & (PF_EXITING | PF_KTHREAD))
		return !atomic_read_acquire(&zerocopy->in_flight);

	return !wait_event_killable(zerocopy->idle,
				    !atomic_read_acquire(&zerocopy->in_flight));
}

void vnr_zerocopy_listen(struct vnr_zerocopy *zerocopy, enum vnr_listen listen)
{
	WRITE_ONCE(zerocopy->listen, listen);
	/*
	 * Either the looks at slots that follow see a packet done, or that one
	 * sees whom to wake. Pairs with the atomic in vnr_zerocopy_gone().
	 */
	smp_mb();
}

/* A packet is not in flight any more. */
static void vnr_zerocopy_gone(struct vnr_zerocopy *zerocopy)
{
	/* Fully ordered: after the slot's state, before the look at listen. */
	int left = atomic_dec_return(&zerocopy->in_flight);
	int listen = READ_ONCE(zerocopy->listen);
	unsigned long flags;

	/* As many wake-ups as in C: the last one, and one in 16. */
	if (listen == VNR_LISTEN_ALWAYS ||
	    (listen == VNR_LISTEN_SOMETIMES && left % 16 == 0)) {
		spin_lock_irqsave(&zerocopy->lock, flags);
		if (zerocopy->open)
			zerocopy->wake(zerocopy->data);
		spin_unlock_irqrestore(&zerocopy->lock, flags);
	}

	if (!left)
		wake_up(&zerocopy->idle);
}

/* Any context. */
static void vnr_zerocopy_complete(struct sk_buff *skb, struct ubuf_info *ubuf,
				  bool in_place)
{
	struct vnr_slot *slot = container_of(ubuf, struct vnr_slot, ubuf);
	struct vnr_zerocopy *zerocopy = slot->zerocopy;

	/* Each clone of the packet counts, and the last one is the end. */
	if (!refcount_dec_and_test(&ubuf->refcnt))
		return;

	/* If this succeeds the slot is not ours any more. */
	if (atomic_cmpxchg(&slot->state, VNR_SLOT_BUSY,
			   in_place ? VNR_SLOT_IN_PLACE : VNR_SLOT_COPIED) ==
	    VNR_SLOT_BUSY)
		vnr_zerocopy_gone(zerocopy);
	vnr_zerocopy_put(zerocopy);
}

static const struct ubuf_info_ops vnr_zerocopy_ops = {
	.complete = vnr_zerocopy_complete,
};

struct ubuf_info *vnr_zerocopy_begin(struct vnr_zerocopy *zerocopy, u32 index)
{
	struct vnr_slot *slot;

	if (index >= VNR_ZEROCOPY_SLOTS)
		return NULL;

	slot = &zerocopy->slot[index];
	if (atomic_read(&slot->state) != VNR_SLOT_FREE)
		return NULL;

	slot->zerocopy = zerocopy;
	slot->ubuf.ops = &vnr_zerocopy_ops;
	slot->ubuf.flags = SKBFL_ZEROCOPY_FRAG;
	refcount_set(&slot->ubuf.refcnt, 1);
	refcount_inc(&zerocopy->refs);
	atomic_inc(&zerocopy->in_flight);
	atomic_set(&slot->state, VNR_SLOT_BUSY);

	return &slot->ubuf;
}

void vnr_zerocopy_cancel(struct vnr_zerocopy *zerocopy, struct ubuf_info *ubuf)
{
	struct vnr_slot *slot = container_of(ubuf, struct vnr_slot, ubuf);

	if (atomic_cmpxchg(&slot->state, VNR_SLOT_BUSY, VNR_SLOT_FREE) ==
	    VNR_SLOT_BUSY) {
		/* The socket did not take it. */
		vnr_zerocopy_gone(zerocopy);
		vnr_zerocopy_put(zerocopy);
	} else {
		/* It did, and has let it go. */
		atomic_set(&slot->state, VNR_SLOT_FREE);
	}
}

void vnr_zerocopy_lose(struct vnr_zerocopy *zerocopy, struct ubuf_info *ubuf)
{
	struct vnr_slot *slot = container_of(ubuf, struct vnr_slot, ubuf);

	/* It keeps its reference, for a completion that may come. */
	if (atomic_cmpxchg(&slot->state, VNR_SLOT_BUSY, VNR_SLOT_LOST) ==
	    VNR_SLOT_BUSY)
		vnr_zerocopy_gone(zerocopy);
}

enum vnr_completion vnr_zerocopy_take(struct vnr_zerocopy *zerocopy, u32 index)
{
	struct vnr_slot *slot;

	if (index >= VNR_ZEROCOPY_SLOTS)
		return VNR_COMPLETION_COPIED;

	slot = &zerocopy->slot[index];
	/* Acquires what whoever read the packet did. */
	switch (atomic_read_acquire(&slot->state)) {
	case VNR_SLOT_BUSY:
		return VNR_COMPLETION_NONE;
	case VNR_SLOT_IN_PLACE:
		atomic_set(&slot->state, VNR_SLOT_FREE);
		return VNR_COMPLETION_IN_PLACE;
	case VNR_SLOT_COPIED:
		atomic_set(&slot->state, VNR_SLOT_FREE);
		return VNR_COMPLETION_COPIED;
	default:
		return VNR_COMPLETION_COPIED;
	}
}

void vnr_zerocopy_barrier(void)
{
	/*
	 * vnr_zerocopy_put() may just have given up the last reference to this
	 * module and not have returned yet: in a task that was preempted there,
	 * or on a CPU that cannot be.
	 */
	if (!READ_ONCE(vnr_zerocopy_used))
		return;

	synchronize_rcu_tasks();
	synchronize_rcu();
}
