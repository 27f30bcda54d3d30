// SPDX-License-Identifier: GPL-2.0
/*
 * Network backends: tun, tap (macvtap, ipvtap) and packet sockets.
 */
#include <linux/container_of.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/if_packet.h>
#include <linux/if_tap.h>
#include <linux/if_tun.h>
#include <linux/net.h>
#include <linux/netdevice.h>
#include <linux/ptr_ring.h>
#include <linux/rcupdate.h>
#include <linux/seq_file.h>
#include <linux/skbuff.h>
#include <linux/sprintf.h>
#include <linux/string.h>
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

/* The name as tun says it itself; all else that has it is private to tun. */
static void vnr_tun_name(struct file *file, char *name)
{
	char text[64] = "";
	struct seq_file seq = { .buf = text, .size = sizeof(text) - 1 };

	if (!file->f_op->show_fdinfo)
		return;

	file->f_op->show_fdinfo(&seq, file);
	if (sscanf(text, "iff: %15s", name) != 1)
		*name = '\0';
}

static void vnr_tap_name(struct socket *sock, char *name)
{
	struct tap_queue *queue = container_of(sock, struct tap_queue, sock);
	struct tap_dev *tap;

	rcu_read_lock();
	tap = rcu_dereference(queue->tap);
	if (tap)
		strscpy(name, tap->dev->name, IFNAMSIZ);
	rcu_read_unlock();
}

static void vnr_packet_name(struct socket *sock, char *name)
{
	struct sockaddr_storage addr = {};
	struct sockaddr_ll *ll = (struct sockaddr_ll *)&addr;
	struct net_device *dev;

	if (sock->ops->getname(sock, (struct sockaddr *)&addr, 0) < 0)
		return;

	rcu_read_lock();
	dev = dev_get_by_index_rcu(sock_net(sock->sk), ll->sll_ifindex);
	snprintf(name, VNR_SOCKET_NAME, "packet:%s", dev ? dev->name : "");
	rcu_read_unlock();
}

void vnr_socket_name(const struct vnr_socket *socket, char *name)
{
	*name = '\0';

	switch (socket->kind) {
	case VNR_SOCKET_TUN:
		vnr_tun_name(socket->file, name);
		break;
	case VNR_SOCKET_TAP:
		vnr_tap_name(socket->sock, name);
		break;
	case VNR_SOCKET_PACKET:
		vnr_packet_name(socket->sock, name);
		break;
	}
}

bool vnr_socket_zerocopies(const struct vnr_socket *socket)
{
	/* A packet socket would take what it is given for control messages. */
	return socket->kind != VNR_SOCKET_PACKET &&
	       sock_flag(socket->sock->sk, SOCK_ZEROCOPY);
}
