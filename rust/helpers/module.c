// SPDX-License-Identifier: GPL-2.0
/*
 * This module: its references and its parameters.
 */
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/string.h>
#include <vhost_net_rs/helpers.h>

static char *node = "vhost-net";
module_param(node, charp, 0444);
MODULE_PARM_DESC(node,
		 "Name of the device node; \"vhost-net\" has the minor of the C module's node, any other a dynamic one");

static ushort max_mem_regions = 64;
module_param(max_mem_regions, ushort, 0444);
MODULE_PARM_DESC(max_mem_regions,
		 "Regions that a memory table may have (default: 64)");

static int max_iotlb_entries = 2048;
module_param(max_iotlb_entries, int, 0444);
MODULE_PARM_DESC(max_iotlb_entries,
		 "Entries that a memory table or an IOTLB keeps, the latest (default: 2048)");

static bool fork_from_owner_default = true;
module_param(fork_from_owner_default, bool, 0444);
MODULE_PARM_DESC(fork_from_owner_default,
		 "Workers are threads of the owner's process, not the kernel's, unless the owner chooses (default: Y)");

/* An integer, as C's is. */
static int experimental_zcopytx;
module_param(experimental_zcopytx, int, 0444);
MODULE_PARM_DESC(experimental_zcopytx,
		 "Other than 0: send long packets from the guest's memory, without a copy (default: 0)");

bool vnr_module_get(void)
{
	return try_module_get(THIS_MODULE);
}

void vnr_module_put(void)
{
	module_put(THIS_MODULE);
}

const char *vnr_param_node(size_t *size)
{
	*size = strlen(node) + 1;
	return node;
}

u16 vnr_param_max_mem_regions(void)
{
	return max_mem_regions;
}

int vnr_param_max_iotlb_entries(void)
{
	return max_iotlb_entries;
}

bool vnr_param_fork_from_owner_default(void)
{
	return fork_from_owner_default;
}

bool vnr_param_zerocopytx(void)
{
	return experimental_zcopytx;
}
