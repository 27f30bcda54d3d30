// SPDX-License-Identifier: GPL-2.0
/*
 * Rings and buffers in the memory of current's address space.
 *
 * A helper that reads or writes more than one value checks the whole range that
 * it may touch, and then opens one user-access window for all of it. The check
 * is what holds; the masked address that the window begins with is the same
 * then, and stands in for a fence against speculation past the check.
 *
 * Inside the window nothing may be called: KCSAN would, for pieces of the
 * kernel's side that are wider than their alignment. That side is the worker's
 * own.
 */
#include <linux/minmax.h>
#include <linux/uaccess.h>
#include <linux/unaligned.h>
#include <vhost_net_rs/helpers.h>

#define VNR_AVAIL_IDX	(offsetof(struct vring_avail, idx) / sizeof(u16))
#define VNR_AVAIL_RING	(offsetof(struct vring_avail, ring) / sizeof(u16))

bool vnr_access_ok(u64 addr, u64 len)
{
	return access_ok(u64_to_user_ptr(addr), len);
}

/* Copies heads, four at once as long as there are four. Inside a window. */
static __always_inline bool vnr_copy_heads(u16 *to, const u16 __user *from,
					   u32 n)
{
	u64 four;

	for (; n >= 4; n -= 4, to += 4, from += 4) {
		unsafe_get_user(four, (const u64 __user *)from, efault);
		put_unaligned(four, (u64 *)to);
	}
	for (; n; n--, to++, from++)
		unsafe_get_user(*to, from, efault);

	return true;

efault:
	return false;
}

/* Copies the descriptors of n heads, but for wrong ones. Inside a window. */
static __always_inline bool vnr_copy_descs(struct vring_desc *out,
					   const struct vring_desc __user *desc,
					   u32 num, const u16 *heads, size_t n)
{
	for (const u16 *end = heads + n; heads < end; heads++, out++) {
		const u64 __user *from = (const u64 __user *)(desc + *heads);
		u64 *to = (u64 *)out;

		/*
		 * A wrong guess here reads at most 1 MiB past the table, which
		 * ends in user space: never the kernel's memory.
		 */
		if (unlikely(*heads >= num))
			continue;
		unsafe_get_user(to[0], from, efault);
		unsafe_get_user(to[1], from + 1, efault);
	}

	return true;

efault:
	return false;
}

/*
 * Reads the avail index. Answers how many chains there are from next on, max at
 * most. Inside a window.
 */
static __always_inline int vnr_read_count(const u16 __user *ring, u32 num,
					  u16 next, u32 max, u16 *avail_idx)
{
	u32 count;
	u16 idx;

	unsafe_get_user(idx, ring + VNR_AVAIL_IDX, efault);
	*avail_idx = idx;
	/*
	 * The heads, and all that the driver wrote before, are read after the
	 * index. Pairs with the driver's barrier before it stores the index
	 * (virtio 1.3, section 2.7.13).
	 */
	smp_rmb();
	count = (u16)(idx - next);

	return count > num ? 0 : min(count, max);

efault:
	return -EFAULT;
}

/* Reads count heads, the first one that of the chain next. Inside a window. */
static __always_inline bool vnr_read_heads(const u16 __user *ring, u32 num,
					   u16 next, u16 *heads, u32 count)
{
	u32 slot = next & (num - 1);
	u32 run = min(count, num - slot);

	/* Up to the ring's end, then from its start. */
	ring += VNR_AVAIL_RING;

	return vnr_copy_heads(heads, ring + slot, run) &&
	       (run == count || vnr_copy_heads(heads + run, ring, count - run));
}

__no_kcsan
int vnr_fetch_heads(u64 avail, u32 num, u16 next, u16 *heads, u32 max,
		    u16 *avail_idx)
{
	const u16 __user *ring = u64_to_user_ptr(avail);
	int count;

	might_fault();
	if (unlikely(!access_ok(ring, (VNR_AVAIL_RING + num) * sizeof(*ring))))
		return -EFAULT;

	ring = masked_user_read_access_begin(ring);
	count = vnr_read_count(ring, num, next, max, avail_idx);
	if (count > 0 && !vnr_read_heads(ring, num, next, heads, count))
		count = -EFAULT;
	user_read_access_end();

	return count;
}

__no_kcsan
s64 vnr_fetch_chains(const struct vnr_rings *rings, u16 next, u16 *heads,
		     struct vring_desc *descs, u32 max)
{
	const u16 __user *ring = u64_to_user_ptr(rings->avail);
	const struct vring_desc __user *desc = u64_to_user_ptr(rings->desc);
	u32 num = rings->num;
	bool done = true;
	int count;
	u16 idx;

	might_fault();
	if (unlikely(!access_ok(ring, (VNR_AVAIL_RING + num) * sizeof(*ring)) ||
		     !access_ok(desc, num * sizeof(*desc))))
		return -EFAULT;

	ring = masked_user_read_access_begin(ring);
	count = vnr_read_count(ring, num, next, max, &idx);
	/* One is common, where packets come one by one, and takes no loops. */
	if (count == 1)
		done = vnr_copy_heads(heads, ring + VNR_AVAIL_RING +
				      (next & (num - 1)), 1) &&
		       vnr_copy_descs(descs, desc, num, heads, 1);
	else if (count > 0)
		done = vnr_read_heads(ring, num, next, heads, count) &&
		       vnr_copy_descs(descs, desc, num, heads, count);
	user_read_access_end();
	if (unlikely(count < 0 || !done))
		return -EFAULT;

	return (s64)idx << 32 | count;
}

int vnr_read_descs(u64 table, u32 num, const u16 *heads,
		   struct vring_desc *out, size_t n)
{
	const struct vring_desc __user *desc = u64_to_user_ptr(table);

	might_fault();
	if (unlikely(!access_ok(desc, num * sizeof(*desc))))
		return -EFAULT;

	desc = masked_user_read_access_begin(desc);
	if (!vnr_copy_descs(out, desc, num, heads, n))
		goto efault;
	user_read_access_end();

	return 0;

efault:
	user_read_access_end();
	return -EFAULT;
}

__no_kcsan
int vnr_write_used(u64 to, const u64 *elems, size_t n)
{
	u64 __user *used = u64_to_user_ptr(to);

	might_fault();
	if (unlikely(!access_ok(used, n * sizeof(*used))))
		return -EFAULT;

	used = masked_user_write_access_begin(used);
	for (size_t i = 0; i < n; i++)
		unsafe_put_user(get_unaligned(elems + i), used + i, efault);
	user_write_access_end();

	return 0;

efault:
	user_write_access_end();
	return -EFAULT;
}

static __always_inline int vnr_load(u64 from)
{
	const u16 __user *ptr = u64_to_user_ptr(from);
	u16 value;

	might_fault();
	scoped_user_read_access(ptr, efault)
		unsafe_get_user(value, ptr, efault);
	/* As in vnr_fetch_heads(). */
	smp_rmb();

	return value;

efault:
	return -EFAULT;
}

static __always_inline int vnr_store(u64 to, u16 value)
{
	u16 __user *ptr = u64_to_user_ptr(to);

	/*
	 * What the value announces is written first. Pairs with the driver's
	 * barrier after it loads the value (virtio 1.3, section 2.7.14).
	 */
	smp_wmb();
	might_fault();
	scoped_user_write_access(ptr, efault)
		unsafe_put_user(value, ptr, efault);

	return 0;

efault:
	return -EFAULT;
}

int vnr_load_u16(u64 from)
{
	return vnr_load(from);
}

int vnr_store_u16(u64 to, u16 value)
{
	return vnr_store(to, value);
}

/* Loads what the driver may have changed before it saw our store. */
static __always_inline int vnr_ask(u64 from)
{
	int value;

	/* The store is seen first. Pairs with the driver's own full barrier. */
	smp_mb();
	value = vnr_load(from);

	return value < 0 ? -ENODATA : value;
}

__no_kcsan
int vnr_publish(u64 to, const u64 *elems, size_t n, u64 idx_at, u16 idx,
		u64 ask)
{
	u64 __user *used = u64_to_user_ptr(to);
	u16 __user *idx_ptr = u64_to_user_ptr(idx_at);

	might_fault();
	if (unlikely(!access_ok(used, n * sizeof(*used)) ||
		     !access_ok(idx_ptr, sizeof(*idx_ptr))))
		return -EFAULT;

	used = masked_user_write_access_begin(used);
	for (size_t i = 0; i < n; i++)
		unsafe_put_user(get_unaligned(elems + i), used + i, efault);
	/* As in vnr_store(). */
	smp_wmb();
	unsafe_put_user(idx, idx_ptr, efault);
	user_write_access_end();

	return vnr_ask(ask);

efault:
	user_write_access_end();
	return -EFAULT;
}

int vnr_store_and_ask(u64 to, u16 value, u64 ask)
{
	int err = vnr_store(to, value);

	return err ? err : vnr_ask(ask);
}

/*
 * The kernel's half of a copy is a slice, which has its own bounds: what
 * copy_from_user() and copy_to_user() would find out about them costs more than
 * the copy of a header field.
 */
int vnr_copy_in(void *to, u64 from, size_t n)
{
	return _copy_from_user(to, u64_to_user_ptr(from), n) ? -EFAULT : 0;
}

int vnr_copy_out(u64 to, const void *from, size_t n)
{
	return _copy_to_user(u64_to_user_ptr(to), from, n) ? -EFAULT : 0;
}
