// SPDX-License-Identifier: GPL-2.0
/*
 * Coverage for kcov.
 */
#include <linux/kcov.h>
#include <vhost_net_rs/helpers.h>

u64 vnr_kcov_common_handle(void)
{
	struct kcov_common_handle_id id = kcov_common_handle();
	u64 handle = 0;

	BUILD_BUG_ON(sizeof(id) > sizeof(handle));
	memcpy(&handle, &id, sizeof(id));
	return handle;
}

void vnr_kcov_remote_start(u64 handle)
{
	kcov_remote_start(kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, handle));
}

void vnr_kcov_remote_stop(void)
{
	kcov_remote_stop();
}
