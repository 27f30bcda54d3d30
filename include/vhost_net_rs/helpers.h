/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The whole border between Rust and C: what rust/helpers offers rust/kapi.
 *
 * A helper exists for what Rust cannot call (macros, inline functions) and for
 * what must not leave C (fields of kernel structures, user-access windows).
 * One call does one batch where there are batches.
 */
#ifndef VHOST_NET_RS_HELPERS_H
#define VHOST_NET_RS_HELPERS_H

#ifndef CONFIG_X86_64
#error "vhost_net_rs: only x86-64 is supported"
#endif

#include <linux/atomic.h>
#include <linux/llist.h>
#include <linux/types.h>
#include <linux/uio.h>
#include <uapi/linux/virtio_ring.h>

struct file;
struct pid;
struct ptr_ring;
struct socket;
struct task_struct;
struct ubuf_info;

/* --- clock.c: time, scheduling --- */

/* Any context. */
u64 vnr_local_clock(void);
/* Another task wants this CPU, or a signal is pending for this one. */
bool vnr_must_yield(void);
bool vnr_signal_pending(void);
void vnr_cond_resched(void);
void vnr_migrate_disable(void);
void vnr_migrate_enable(void);
/* Sets current's state to TASK_RUNNING. */
void vnr_set_running(void);

/* --- coverage.c: kcov --- */

/* That of the current task, or 0; where there is no kcov, it always is 0. */
u64 vnr_kcov_common_handle(void);
/*
 * What the current task runs from here to the stop is covered for whoever has
 * handle. Not to be nested.
 */
void vnr_kcov_remote_start(u64 handle);
void vnr_kcov_remote_stop(void);

/* --- dirty_log.c: the owner's map of dirty pages --- */

/*
 * Sets count bits from bit page on in the map at bitmap, in the memory of
 * current's address space, which it must have, after all earlier writes.
 * Returns 0 or -EFAULT. Sleeps.
 */
int vnr_log_pages(u64 bitmap, u64 page, u64 count);

/* --- file.c --- */

/* fget(), NULL also for a task without a file table. */
struct file *vnr_fget(int fd);
/* iov_iter_count() */
size_t vnr_iter_len(const struct iov_iter *iter);

/* --- index.c --- */

/* array_index_nospec(): index if it is below size, else 0. */
u32 vnr_index_nospec(u32 index, u32 size);

/* --- kthread.c: kernel threads --- */

/* A thread that waits to be woken; an error pointer without one. */
struct task_struct *vnr_kthread_create(int (*main)(void *data), void *data,
				       const char *name);
/*
 * Moves a kernel thread that has begun to run into current's cgroups. 0 or a
 * negative error.
 */
int vnr_kthread_join_cgroups(struct task_struct *task);
/*
 * Of a kernel thread: calls pass(data) until kthread_stop(), with the state
 * TASK_INTERRUPTIBLE. Sleeps after it has answered false.
 */
void vnr_kthread_loop(bool (*pass)(void *data), void *data);

/* --- module.c --- */

/* Takes a reference to this module; false while it is going away. */
bool vnr_module_get(void);
void vnr_module_put(void);
/* The parameter "node", and its size with the NUL at its end. */
const char *vnr_param_node(size_t *size);
/* The other parameters. */
u16 vnr_param_max_mem_regions(void);
int vnr_param_max_iotlb_entries(void);
bool vnr_param_fork_from_owner_default(void);
bool vnr_param_zerocopytx(void);

/* --- polling.c --- */

/* The parameters that a device begins with, as struct vhost_net_rs_poll. */
struct vnr_poll_defaults {
	u32 window;
	u32 policy;
	u32 flags;
	u32 start_rate;
	u32 stop_idle;
};

void vnr_param_poll(struct vnr_poll_defaults *out);
/* The parameter "poll_max_us", 0 for no limit. */
u32 vnr_param_poll_max_us(void);
/* No other task wants this CPU. */
bool vnr_single_task_running(void);
/* The current process; vnr_put_process() lets it go. */
struct pid *vnr_current_process(void);
void vnr_put_process(struct pid *process);
/* A thread of the process, but for the kernel's in it, is on a CPU. */
bool vnr_process_runs(struct pid *process);

/* --- segments of user memory --- */

/* Bytes in nr segments, but no more than max. */
static inline size_t vnr_iov_len(const struct iovec *iov, u32 nr, size_t max)
{
	const struct iovec *end = iov + nr;
	size_t left = max;

	for (; iov < end; iov++) {
		if (iov->iov_len >= left)
			return max;

		left -= iov->iov_len;
	}

	return max - left;
}

/* --- rx_queue.c: packets for the guest --- */

#define VNR_RX_BATCH	64

struct vnr_socket;

/*
 * What a vnr_rx begins with: packets that were taken off the socket's ring are
 * head up to tail - 1, and len[i] bytes long, without a virtio-net header. For
 * reading only.
 */
struct vnr_rx_batch {
	u32 head;
	u32 tail;
	int len[VNR_RX_BATCH];
};

struct vnr_rx;

/* NULL without memory. The socket must outlive the queue. */
struct vnr_rx *vnr_rx_alloc(const struct vnr_socket *socket);
/* The queue must hold no packet. NULL is allowed. */
void vnr_rx_free(struct vnr_rx *rx);
/*
 * Length of the next packet, -1 without one. Takes up to max packets off the
 * socket's ring if the queue has none.
 */
int vnr_rx_peek(struct vnr_rx *rx, u32 max);

enum vnr_received {
	/* The packet arrived, and num_buffers was written if it was given. */
	VNR_RECEIVED_WHOLE,
	/* Not, or not all of it; the packet is gone. */
	VNR_RECEIVED_PART,
	/* The packet arrived, num_buffers could not be written. */
	VNR_RECEIVED_UNCOUNTED,
};

/*
 * Receives the next packet, len bytes with its header, into nr segments of user
 * memory. Where num_buffers is not 0 it is written into the header then, if the
 * first segment has that.
 */
enum vnr_received vnr_rx_recv(struct vnr_rx *rx, const struct iovec *iov,
			      u32 nr, size_t len, u16 num_buffers);
/* The same, into one segment at to. */
enum vnr_received vnr_rx_recv_one(struct vnr_rx *rx, u64 to, size_t len,
				  u16 num_buffers);
/* Drops the next packet, if there is one. */
void vnr_rx_discard(struct vnr_rx *rx);
/* Gives them back to the ring; returns how many it could not take. Sleeps. */
u32 vnr_rx_put_back(struct vnr_rx *rx);

/* --- socket.c --- */

enum vnr_socket_kind {
	VNR_SOCKET_TUN,
	/* macvtap or ipvtap */
	VNR_SOCKET_TAP,
	/* AF_PACKET, SOCK_RAW: has no ring */
	VNR_SOCKET_PACKET,
};

/* The parts of a network backend. All live as long as file does. */
struct vnr_socket {
	struct file *file;
	struct socket *sock;
	struct ptr_ring *ring;
	enum vnr_socket_kind kind;
};

/* Fills in out; false if file is no network backend. */
bool vnr_socket_of(struct file *file, struct vnr_socket *out);
/* A packet for the guest waits in the socket. */
bool vnr_socket_has_data(const struct vnr_socket *socket);
/*
 * It is a tun whose packets have no Ethernet header (IFF_TUN). Sleeps, for the
 * network's own lock too.
 */
bool vnr_socket_is_bare(const struct vnr_socket *socket);
/* The socket can send from user memory: a tun, or a tap on such an interface. */
bool vnr_socket_zerocopies(const struct vnr_socket *socket);

/* "packet:", a name, NUL */
#define VNR_SOCKET_NAME	32

/*
 * The name of its interface, behind "packet:" for a packet socket; empty
 * without one. Sleeps, for the network's own lock too.
 */
void vnr_socket_name(const struct vnr_socket *socket, char *name);

/* --- tx_queue.c: frames from the guest --- */

#define VNR_TX_BATCH	64
/* The longest virtio-net header: struct virtio_net_hdr_v1_hash_tunnel. */
#define VNR_TX_MAX_HEADER	24

struct vnr_tx;

/* NULL without memory. The socket must outlive the queue. */
struct vnr_tx *vnr_tx_alloc(const struct vnr_socket *socket);
/* Frees the frames that wait, too. NULL is allowed. */
void vnr_tx_free(struct vnr_tx *tx);
/*
 * Sets the header's length, at most VNR_TX_MAX_HEADER, and looks at the socket.
 * Returns how many frames a batch may hold; 0: vnr_tx_send() only.
 */
u32 vnr_tx_prepare(struct vnr_tx *tx, u32 header_len);
/*
 * Copies a frame of len bytes, header included, to the end of the batch.
 * Returns the header's copy: whoever changes it does so before the next call.
 *
 * Else an error pointer: -E2BIG if it needs more than a page or the batch is
 * full, -EFAULT if it cannot be read or is shorter than its header, -ENOMEM.
 */
u8 *vnr_tx_stage(struct vnr_tx *tx, const struct iovec *iov, u32 nr,
		 size_t len);
/* The same for a frame in one piece, at from in user memory. */
u8 *vnr_tx_stage_one(struct vnr_tx *tx, u64 from, size_t len);
/* Takes the last frame out of the batch again, if there is one. */
void vnr_tx_unstage(struct vnr_tx *tx);
/* Sends the batch, which is empty afterwards. 0 or a negative error. */
int vnr_tx_submit(struct vnr_tx *tx);
/* Sends one frame from user memory. 0 or a negative error. */
int vnr_tx_send(struct vnr_tx *tx, const struct iovec *iov, u32 nr, size_t len,
		bool more);

struct vnr_zerocopy;

/*
 * As vnr_tx_send(), but the packet takes the slot index, and may be read until
 * vnr_zerocopy_take() says that it is done. The slot is free after an error.
 */
int vnr_tx_send_in_place(struct vnr_tx *tx, struct vnr_zerocopy *zerocopy,
			 u32 index, const struct iovec *iov, u32 nr, size_t len,
			 bool more);

/* --- user_memory.c: the memory of current's address space --- */

bool vnr_access_ok(u64 addr, u64 len);
/*
 * Loads avail->idx, then up to max heads of the num entries from next on.
 * Returns their number or -EFAULT.
 */
int vnr_fetch_heads(u64 avail, u32 num, u16 next, u16 *heads, u32 max,
		    u16 *avail_idx);
/* out[i] = table[heads[i]] for i < n, but for heads that are not below num. */
int vnr_read_descs(u64 table, u32 num, const u16 *heads,
		   struct vring_desc *out, size_t n);
/* Where the parts that the driver writes are, and their entries. */
struct vnr_rings {
	u64 desc;
	u64 avail;
	u32 num;
};

/*
 * vnr_fetch_heads() and vnr_read_descs() of what it found. Returns avail->idx
 * in the upper half and the number of heads in the lower one, or -EFAULT.
 */
s64 vnr_fetch_chains(const struct vnr_rings *rings, u16 next, u16 *heads,
		     struct vring_desc *descs, u32 max);
/* elems need not be aligned. */
int vnr_write_used(u64 to, const u64 *elems, size_t n);
/*
 * vnr_write_used(), then vnr_store_u16(), then a full barrier and
 * vnr_load_u16() from ask: its value, -ENODATA if that could not be read, or
 * -EFAULT if something could not be written.
 */
int vnr_publish(u64 to, const u64 *elems, size_t n, u64 idx_at, u16 idx,
		u64 ask);
/* The same without elements. */
int vnr_store_and_ask(u64 to, u16 value, u64 ask);
/* The value, with acquire order, or -EFAULT. */
int vnr_load_u16(u64 from);
/* With release order. */
int vnr_store_u16(u64 to, u16 value);
int vnr_copy_in(void *to, u64 from, size_t n);
int vnr_copy_out(u64 to, const void *from, size_t n);

/* --- wait.c: being told when a file becomes ready --- */

struct vnr_poll;

/*
 * NULL without memory. wake(data) is called in any context, hard interrupts
 * included, for any of events. file must outlive the entry.
 */
struct vnr_poll *vnr_poll_alloc(struct file *file, u32 events,
				void (*wake)(void *data), void *data);
/* Stops it first. NULL is allowed. */
void vnr_poll_free(struct vnr_poll *poll);
/*
 * From now on wake() is not called while one of bits is set in word, which must
 * outlive the entry. Not for an entry that waits.
 */
void vnr_poll_quiet_while(struct vnr_poll *poll, const atomic_t *word,
			  u32 bits);
/*
 * Starts waiting if it is not waiting; wakes at once if the file is ready.
 * Returns whether it waits, or -EINVAL if the file is in error, unless that is
 * allowed. Sleeps.
 */
int vnr_poll_start(struct vnr_poll *poll, bool in_error_too);
/* No wake() runs and none comes after it returns. */
void vnr_poll_stop(struct vnr_poll *poll);

/* --- work.c: pending work --- */

/* Both fully ordered. */
u32 vnr_fetch_or(atomic_t *word, u32 bits);
u32 vnr_take_bits(atomic_t *word);
void vnr_list_add(struct llist_head *list, struct llist_node *node);
/* Takes all entries off the list, the oldest first. */
struct llist_node *vnr_list_take(struct llist_head *list);

/* --- zerocopy.c: packets that a socket sends from user memory --- */

#define VNR_ZEROCOPY_SLOTS	256

/* Which completions call wake(). */
enum vnr_listen {
	VNR_LISTEN_NEVER,
	/* The last one, and one in 16. */
	VNR_LISTEN_SOMETIMES,
	VNR_LISTEN_ALWAYS,
};

enum vnr_completion {
	/* The packet is in flight. */
	VNR_COMPLETION_NONE,
	VNR_COMPLETION_IN_PLACE,
	VNR_COMPLETION_COPIED,
};

/*
 * wake(data) is called in any context. The module stays. NULL without memory, or
 * while the module is going away.
 */
struct vnr_zerocopy *vnr_zerocopy_alloc(void (*wake)(void *data), void *data);
/*
 * The owner's last call: no wake() runs and none comes. The memory stays until
 * no packet is in flight.
 */
void vnr_zerocopy_close(struct vnr_zerocopy *zerocopy);
/*
 * Waits until no packet is in flight; false if some are, and the task is killed
 * or at its end. Sleeps.
 */
bool vnr_zerocopy_wait(struct vnr_zerocopy *zerocopy);
/* Completions before this are seen by the next vnr_zerocopy_take(). */
void vnr_zerocopy_listen(struct vnr_zerocopy *zerocopy, enum vnr_listen listen);
/* A packet is about to be sent in a slot; NULL if that is not free. */
struct ubuf_info *vnr_zerocopy_begin(struct vnr_zerocopy *zerocopy, u32 index);
/* The socket has answered with an error. */
void vnr_zerocopy_cancel(struct vnr_zerocopy *zerocopy, struct ubuf_info *ubuf);
/*
 * The socket may have dropped the packet without a word. It counts as copied;
 * its slot is not free any more.
 */
void vnr_zerocopy_lose(struct vnr_zerocopy *zerocopy, struct ubuf_info *ubuf);
/* What became of the packet in a slot; if it is done the slot is free. */
enum vnr_completion vnr_zerocopy_take(struct vnr_zerocopy *zerocopy, u32 index);
/* No completion is in code of this module, which is going away. Sleeps. */
void vnr_zerocopy_barrier(void);

#endif
