// SPDX-License-Identifier: GPL-2.0
/*
 * Network backends: tun, tap (macvtap, ipvtap) and packet sockets.
 */
#include <linux/err.h>
#include <linux/if_tap.h>
#include <linux/if_tun.h>
#include <linux/limits.h>
#include <linux/net.h>
#include <linux/ptr_ring.h>
#include <linux/skbuff.h>
#include <net/sock.h>
#include <vhost_net_rs/helpers.h>

bool vnr_socket_of(struct file *file, struct vnr_socket *out)
{
	struct socket *sock;

	out->file = file;

	sock = tun_get_socket(file);
	if (!IS_ERR(sock)) {
		out->kind = VNR_SOCKET_TUN;
		out->sock = sock;
		out->ring = tun_get_tx_ring(file);
		return !IS_ERR(out->ring);
	}

	sock = tap_get_socket(file);
	if (!IS_ERR(sock)) {
		out->kind = VNR_SOCKET_TAP;
		out->sock = sock;
		out->ring = tap_get_ptr_ring(file);
		return !IS_ERR(out->ring);
	}

	sock = sock_from_file(file);
	if (sock && sock->sk->sk_family == AF_PACKET &&
	    sock->sk->sk_type == SOCK_RAW) {
		out->kind = VNR_SOCKET_PACKET;
		out->sock = sock;
		out->ring = NULL;
		return true;
	}

	return false;
}

bool vnr_socket_has_data(const struct vnr_socket *socket)
{
	/* Under the lock: a change of the queue length frees the ring's array. */
	if (socket->ring)
		return !ptr_ring_empty(socket->ring);

	return !skb_queue_empty_lockless(&socket->sock->sk->sk_receive_queue);
}

bool vnr_socket_is_bare(const struct vnr_socket *socket)
{
	struct file *file = socket->file;

	if (socket->kind != VNR_SOCKET_TUN)
		return false;

	/*
	 * The only word that tun has for it: this call is for IFF_TAP alone,
	 * and refuses another before it looks at the address, which is bad.
	 */
	return file->f_op->unlocked_ioctl(file, TUNGETFILTER, ULONG_MAX) ==
	       -EINVAL;
}

bool vnr_socket_batches(const struct vnr_socket *socket)
{
	/* A packet socket would take the batch for an address of user space. */
	return socket->kind != VNR_SOCKET_PACKET &&
	       READ_ONCE(socket->sock->sk->sk_sndbuf) == INT_MAX;
}
