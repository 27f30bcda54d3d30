// SPDX-License-Identifier: GPL-2.0
/*
 * Packets for the guest: taken off the socket's ring in batches, received one
 * by one.
 */
#include <linux/if_tun.h>
#include <linux/if_vlan.h>
#include <linux/minmax.h>
#include <linux/mutex.h>
#include <linux/net.h>
#include <linux/ptr_ring.h>
#include <linux/skb_array.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/uio.h>
#include <linux/virtio_net.h>
#include <net/sock.h>
#include <net/xdp.h>
#include <vhost_net_rs/helpers.h>

struct vnr_rx {
	/* The packets are packet[head] up to packet[tail - 1]; ours. */
	struct vnr_rx_batch batch;
	void *packet[VNR_RX_BATCH];
	struct vnr_socket socket;
	/* All zero but for what a call sets; no callee keeps anything here. */
	struct msghdr msg;
};

static_assert(offsetof(struct vnr_rx, batch) == 0);

struct vnr_rx *vnr_rx_alloc(const struct vnr_socket *socket)
{
	struct vnr_rx *rx = kzalloc(sizeof(*rx), GFP_KERNEL);

	if (rx)
		rx->socket = *socket;

	return rx;
}

void vnr_rx_free(struct vnr_rx *rx)
{
	kfree(rx);
}

static __always_inline int vnr_rx_packet_len(void *packet)
{
	if (tun_is_xdp_frame(packet))
		return ((struct xdp_frame *)tun_ptr_to_xdp(packet))->len;

	return __skb_array_len_with_tag(packet);
}

/*
 * Takes packets off a ring that has some, under its lock, which it lets go. Out
 * of line, so that a look at a packet that is here, or at none, stays short.
 */
static noinline int vnr_rx_refill(struct vnr_rx *rx, struct ptr_ring *ring,
				  u32 max)
	__releases(&ring->consumer_lock)
{
	int *len = rx->batch.len;
	void **packet;
	void **end;
	int count;

	count = __ptr_ring_consume_batched(ring, rx->packet,
					   clamp(max, 1u, VNR_RX_BATCH));
	/* A tun whose queue was stopped starts it when there is room again. */
	if (rx->socket.kind == VNR_SOCKET_TUN)
		tun_wake_queue(rx->socket.file, count);
	spin_unlock(&ring->consumer_lock);

	rx->batch.head = 0;
	rx->batch.tail = count;

	end = rx->packet + count;
	for (packet = rx->packet; packet < end; packet++)
		*len++ = vnr_rx_packet_len(*packet);

	return rx->batch.len[0];
}

/* A socket without a ring: the packet stays where it is. */
static noinline int vnr_rx_peek_socket(struct sock *sk)
{
	struct sk_buff_head *queue = &sk->sk_receive_queue;
	struct sk_buff *skb;
	unsigned long flags;
	int len = -1;

	if (skb_queue_empty_lockless(queue))
		return len;

	spin_lock_irqsave(&queue->lock, flags);
	skb = skb_peek(queue);
	if (skb)
		len = __skb_array_len_with_tag(skb);
	spin_unlock_irqrestore(&queue->lock, flags);

	return len;
}

int vnr_rx_peek(struct vnr_rx *rx, u32 max)
{
	struct vnr_rx_batch *batch = &rx->batch;
	struct ptr_ring *ring = rx->socket.ring;

	if (!ring)
		return vnr_rx_peek_socket(rx->socket.sock->sk);

	if (batch->head != batch->tail)
		return batch->len[batch->head];

	/* Under the lock: a change of the queue length frees the ring's array. */
	spin_lock(&ring->consumer_lock);
	if (!__ptr_ring_empty(ring))
		return vnr_rx_refill(rx, ring, max);
	spin_unlock(&ring->consumer_lock);

	return -1;
}

/* The next packet moves out of the queue; NULL without one. */
static __always_inline void *vnr_rx_pop(struct vnr_rx *rx)
{
	u32 head = rx->batch.head;
	void **packet = rx->packet + head;

	if (head == rx->batch.tail)
		return NULL;

	rx->batch.head = head + 1;

	return *packet;
}

static __always_inline int vnr_rx_recvmsg(struct vnr_rx *rx, void *packet, size_t len)
{
	struct socket *sock = rx->socket.sock;
	struct msghdr *msg = &rx->msg;

	/* recvmsg() of a tun or tap frees this packet, whatever it answers. */
	msg->msg_control = packet;
	msg->msg_controllen = 0;
	msg->msg_flags = 0;

	return sock->ops->recvmsg(sock, msg, len, MSG_DONTWAIT | MSG_TRUNC);
}

/* A tun says that all was received where it could not write all of it. */
static __always_inline bool vnr_rx_is_whole(const struct vnr_rx *rx)
{
	return likely(!iov_iter_count(&rx->msg.msg_iter));
}

/* Writes num_buffers, if it is not 0, into a header that begins at buf. */
static __always_inline enum vnr_received
vnr_rx_count(u8 __user *buf, u16 num_buffers)
{
	struct virtio_net_hdr_mrg_rxbuf __user *header;
	u16 __user *field;

	if (!num_buffers)
		return VNR_RECEIVED_WHOLE;

	header = (struct virtio_net_hdr_mrg_rxbuf __user *)buf;
	field = (u16 __user *)&header->num_buffers;
	might_fault();
	scoped_user_write_access(field, efault)
		unsafe_put_user(num_buffers, field, efault);

	return VNR_RECEIVED_WHOLE;

efault:
	return VNR_RECEIVED_UNCOUNTED;
}

enum vnr_received vnr_rx_recv(struct vnr_rx *rx, const struct iovec *iov,
			      u32 nr, size_t len, u16 num_buffers)
{
	void *packet = vnr_rx_pop(rx);
	size_t room;

	if (unlikely(!packet && rx->socket.ring))
		return VNR_RECEIVED_PART;

	/* The count may not pass the end of the segments. */
	room = vnr_iov_len(iov, nr, len);
	iov_iter_init(&rx->msg.msg_iter, ITER_DEST, iov, nr, room);
	if (unlikely(vnr_rx_recvmsg(rx, packet, room) != len || room != len) ||
	    !vnr_rx_is_whole(rx))
		return VNR_RECEIVED_PART;

	/* A header that is cut is the caller's. */
	if (num_buffers &&
	    iov->iov_len < sizeof(struct virtio_net_hdr_mrg_rxbuf))
		return VNR_RECEIVED_UNCOUNTED;

	return vnr_rx_count(iov->iov_base, num_buffers);
}

enum vnr_received vnr_rx_recv_one(struct vnr_rx *rx, u64 to, size_t len,
				  u16 num_buffers)
{
	u8 __user *buf = u64_to_user_ptr(to);
	void *packet = vnr_rx_pop(rx);

	if (unlikely(!packet && rx->socket.ring))
		return VNR_RECEIVED_PART;

	len = min(len, MAX_RW_COUNT);
	iov_iter_ubuf(&rx->msg.msg_iter, ITER_DEST, buf, len);
	if (unlikely(vnr_rx_recvmsg(rx, packet, len) != len) ||
	    !vnr_rx_is_whole(rx))
		return VNR_RECEIVED_PART;

	return vnr_rx_count(buf, num_buffers);
}

void vnr_rx_discard(struct vnr_rx *rx)
{
	void *packet = vnr_rx_pop(rx);

	if (packet) {
		tun_ptr_free(packet);
	} else if (!rx->socket.ring) {
		iov_iter_kvec(&rx->msg.msg_iter, ITER_DEST, NULL, 0, 0);
		vnr_rx_recvmsg(rx, NULL, 0);
	}
}

/* ptr_ring_unconsume() has no other way to tell; under vnr_rx_lost_lock. */
static DEFINE_MUTEX(vnr_rx_lost_lock);
static u32 vnr_rx_lost;

static void vnr_rx_lose(void *packet)
{
	vnr_rx_lost++;
	tun_ptr_free(packet);
}

u32 vnr_rx_put_back(struct vnr_rx *rx)
{
	struct vnr_rx_batch *batch = &rx->batch;
	u32 lost;

	if (batch->head == batch->tail)
		return 0;

	mutex_lock(&vnr_rx_lost_lock);
	vnr_rx_lost = 0;
	ptr_ring_unconsume(rx->socket.ring, rx->packet + batch->head,
			   batch->tail - batch->head, vnr_rx_lose);
	lost = vnr_rx_lost;
	mutex_unlock(&vnr_rx_lost_lock);

	batch->head = 0;
	batch->tail = 0;

	return lost;
}
