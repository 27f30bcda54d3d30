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
