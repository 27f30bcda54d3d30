// SPDX-License-Identifier: GPL-2.0
/*
 * Open files.
 */
#include <linux/file.h>
#include <linux/sched.h>
#include <linux/uio.h>
#include <vhost_net_rs/helpers.h>

struct file *vnr_fget(int fd)
{
	/* vhost tasks have no file table, and fget() does not look. */
	if (!current->files || fd < 0)
		return NULL;

	return fget(fd);
}

size_t vnr_iter_len(const struct iov_iter *iter)
{
	return iov_iter_count(iter);
}
