// SPDX-License-Identifier: GPL-2.0
/*
 * Frames from the guest: copied into page fragments and handed to a tun or tap
 * in batches, or sent one by one from user memory.
 */
#include <linux/err.h>
#include <linux/if_tap.h>
#include <linux/if_tun.h>
#include <linux/limits.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/net.h>
#include <linux/page_frag_cache.h>
#include <linux/rcupdate.h>
#include <linux/skbuff.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/uio.h>
#include <linux/virtio_net.h>
#include <net/sock.h>
#include <net/xdp.h>
#include <vhost_net_rs/helpers.h>

/* What build_skb() wants behind the frame. */
#define VNR_TX_TAIL	SKB_DATA_ALIGN(sizeof(struct skb_shared_info))

static_assert(sizeof(struct virtio_net_hdr_v1_hash_tunnel) == VNR_TX_MAX_HEADER);
/* pad is a cache line at least: the copy of the header does not overlap it. */
static_assert(L1_CACHE_BYTES >= 2 * VNR_TX_MAX_HEADER);

struct vnr_tx {
	struct vnr_socket socket;
	/* The socket would take the frames of a batch for Ethernet. */
	bool bare;
	/* In bytes; part of pad. */
	u32 header_len;
	/* From the start of a buffer to the frame behind its header. */
	u32 pad;
	/* Each frame of the batch owns the fragment at its data_hard_start. */
	u32 count;
	struct page_frag_cache frags;
	struct tun_msg_ctl ctl;
	/* All zero but for what a call sets; no callee keeps anything here. */
	struct msghdr msg;
	struct xdp_buff frame[VNR_TX_BATCH];
};

struct vnr_tx *vnr_tx_alloc(const struct vnr_socket *socket)
{
	struct vnr_tx *tx = kzalloc(sizeof(*tx), GFP_KERNEL);

	if (!tx)
		return NULL;

	tx->socket = *socket;
	tx->bare = vnr_socket_is_bare(socket);
	tx->ctl.type = TUN_MSG_PTR;
	tx->ctl.ptr = tx->frame;
	vnr_tx_prepare(tx, 0);

	return tx;
}

static void vnr_tx_drop_batch(struct vnr_tx *tx)
{
	while (tx->count)
		vnr_tx_unstage(tx);
}

void vnr_tx_free(struct vnr_tx *tx)
{
	if (!tx)
		return;

	vnr_tx_drop_batch(tx);
	page_frag_cache_drain(&tx->frags);
	kfree(tx);
}

/* It takes batches: a tun or tap without a limit on its send buffer. */
static bool vnr_tx_batches(const struct vnr_socket *socket)
{
	/* A packet socket would take the batch for an address of user space. */
	return socket->kind != VNR_SOCKET_PACKET &&
	       READ_ONCE(socket->sock->sk->sk_sndbuf) == INT_MAX;
}

u32 vnr_tx_prepare(struct vnr_tx *tx, u32 header_len)
{
	u32 headroom = 0;

	if (sock_flag(tx->socket.sock->sk, SOCK_XDP))
		headroom = XDP_PACKET_HEADROOM;

	tx->header_len = min(header_len, VNR_TX_MAX_HEADER);
	tx->pad = SKB_DATA_ALIGN(NET_IP_ALIGN + NET_SKB_PAD + headroom +
				 tx->header_len);

	if (tx->bare || !vnr_tx_batches(&tx->socket))
		return 0;

	return VNR_TX_BATCH;
}

/*
 * Copies the first len bytes of the segments; false if they are not there.
 *
 * Without the check of copy_from_user() that len bytes fit where they go: the
 * caller has just made room for them, and it costs more than the rest.
 */
static __always_inline bool vnr_tx_copy(void *to, const struct iovec *iov,
					u32 nr, size_t len)
{
	for (; nr; iov++, nr--) {
		size_t n = min(len, iov->iov_len);

		if (_copy_from_user(to, iov->iov_base, n))
			return false;

		len -= n;
		if (!len)
			return true;

		to += n;
	}

	return !len;
}

static __always_inline u8 *
vnr_tx_stage_iov(struct vnr_tx *tx, const struct iovec *iov, u32 nr, size_t len)
{
	u32 header_len = tx->header_len;
	u32 count = tx->count;
	u32 pad = tx->pad;
	struct xdp_buff *frame;
	size_t size;
	void *buf;
	void *header;

	if (unlikely(len < header_len))
		return ERR_PTR(-EFAULT);

	/* len first: the sum could wrap. */
	if (unlikely(len > PAGE_SIZE || count >= VNR_TX_BATCH))
		return ERR_PTR(-E2BIG);

	size = SKB_DATA_ALIGN(len + pad) + VNR_TX_TAIL;
	if (unlikely(size > PAGE_SIZE))
		return ERR_PTR(-E2BIG);

	buf = page_frag_alloc_align(&tx->frags, size, GFP_KERNEL,
				    SMP_CACHE_BYTES);
	if (unlikely(!buf))
		return ERR_PTR(-ENOMEM);

	frame = &tx->frame[count];
	xdp_init_buff(frame, size, NULL);
	xdp_prepare_buff(frame, buf, pad, len - header_len, true);

	header = buf + pad - header_len;
	if (unlikely(!vnr_tx_copy(header, iov, nr, len))) {
		page_frag_free(buf);
		return ERR_PTR(-EFAULT);
	}

	/*
	 * The socket reads the header at the start of the buffer; without one
	 * it must find an empty one there. The length is the longest header's,
	 * since a constant one costs less; what is behind a shorter header is
	 * the frame's own start, and inside the buffer in any case.
	 */
	if (header_len)
		memcpy(buf, header, VNR_TX_MAX_HEADER);
	else
		memset(buf, 0, VNR_TX_MAX_HEADER);
	tx->count = count + 1;

	return buf;
}

u8 *vnr_tx_stage(struct vnr_tx *tx, const struct iovec *iov, u32 nr, size_t len)
{
	return vnr_tx_stage_iov(tx, iov, nr, len);
}

u8 *vnr_tx_stage_one(struct vnr_tx *tx, u64 from, size_t len)
{
	struct iovec iov = { u64_to_user_ptr(from), len };

	return vnr_tx_stage_iov(tx, &iov, 1, len);
}

void vnr_tx_unstage(struct vnr_tx *tx)
{
	if (tx->count)
		page_frag_free(tx->frame[--tx->count].data_hard_start);
}

int vnr_tx_submit(struct vnr_tx *tx)
{
	struct socket *sock = tx->socket.sock;
	struct msghdr *msg = &tx->msg;
	int err;

	if (!tx->count)
		return 0;

	tx->ctl.num = tx->count;
	msg->msg_control = &tx->ctl;
	msg->msg_controllen = sizeof(tx->ctl);
	msg->msg_flags = MSG_DONTWAIT;

	err = sock->ops->sendmsg(sock, msg, 0);
	if (unlikely(err < 0)) {
		/* The socket is gone: it took none of them. */
		vnr_tx_drop_batch(tx);
		return err;
	}

	/* It took all of them, the ones that it did not like as well. */
	tx->count = 0;

	return 0;
}

/* ctl goes with the packet; NULL is allowed. */
static __always_inline int
vnr_tx_sendmsg(struct vnr_tx *tx, const struct iovec *iov, u32 nr, size_t len,
	       bool more, struct tun_msg_ctl *ctl)
{
	struct socket *sock = tx->socket.sock;
	struct msghdr *msg = &tx->msg;
	int err;

	/* The count may not pass the end of the segments. */
	if (len > MAX_RW_COUNT || vnr_iov_len(iov, nr, len) != len)
		return -EINVAL;

	msg->msg_control = ctl;
	msg->msg_controllen = ctl ? sizeof(*ctl) : 0;
	msg->msg_flags = MSG_DONTWAIT | (more ? MSG_MORE : 0);
	iov_iter_init(&msg->msg_iter, ITER_SOURCE, iov, nr, len);

	err = sock->ops->sendmsg(sock, msg, len);

	return min(err, 0);
}

int vnr_tx_send(struct vnr_tx *tx, const struct iovec *iov, u32 nr, size_t len,
		bool more)
{
	return vnr_tx_sendmsg(tx, iov, nr, len, more, NULL);
}

/* A tap whose interface was deleted: drops a packet, and tells nobody. */
static bool vnr_tx_is_dead(const struct vnr_socket *socket)
{
	const struct tap_queue *queue;

	if (socket->kind != VNR_SOCKET_TAP)
		return false;

	queue = container_of(socket->sock, struct tap_queue, sock);

	return !rcu_access_pointer(queue->tap);
}

/*
 * A tun takes a packet of at most a page for a copy if it is in more pages than
 * a socket buffer can have. An XDP program may then drop it, and nobody is told.
 */
static bool vnr_tx_is_torn(const struct iovec *iov, u32 nr, size_t len)
{
	struct iov_iter iter;

	if (len > PAGE_SIZE || nr <= MAX_SKB_FRAGS / 2)
		return false;

	/* The count may not pass the end of the segments: that is not checked yet. */
	iov_iter_init(&iter, ITER_SOURCE, iov, nr, vnr_iov_len(iov, nr, len));

	return iov_iter_npages(&iter, MAX_SKB_FRAGS + 1) > MAX_SKB_FRAGS;
}

int vnr_tx_send_in_place(struct vnr_tx *tx, struct vnr_zerocopy *zerocopy,
			 u32 index, const struct iovec *iov, u32 nr, size_t len,
			 bool more)
{
	struct ubuf_info *ubuf = vnr_zerocopy_begin(zerocopy, index);
	struct tun_msg_ctl ctl = {
		.type = TUN_MSG_UBUF,
		.ptr = ubuf,
	};
	bool copy = vnr_tx_is_dead(&tx->socket) || vnr_tx_is_torn(iov, nr, len);
	int err;

	if (!ubuf)
		return -EBUSY;

	err = vnr_tx_sendmsg(tx, iov, nr, len, more, copy ? NULL : &ctl);
	/* The socket is not to find it there at another packet. */
	tx->msg.msg_control = NULL;
	if (err < 0)
		vnr_zerocopy_cancel(zerocopy, ubuf);
	else if (copy)
		ubuf->ops->complete(NULL, ubuf, false);
	else if (unlikely(vnr_tx_is_dead(&tx->socket)))
		vnr_zerocopy_lose(zerocopy, ubuf);

	return err;
}
