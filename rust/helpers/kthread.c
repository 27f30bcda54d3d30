// SPDX-License-Identifier: GPL-2.0
/*
 * Kernel threads that do the work of devices.
 */
#include <linux/cgroup.h>
#include <linux/kthread.h>
#include <linux/sched.h>
#include <vhost_net_rs/helpers.h>

struct task_struct *vnr_kthread_create(int (*main)(void *data), void *data,
				       const char *name)
{
	return kthread_create(main, data, "%s", name);
}

int vnr_kthread_join_cgroups(struct task_struct *task)
{
	return cgroup_attach_task_all(current, task);
}

void vnr_kthread_loop(bool (*pass)(void *data), void *data)
{
	for (;;) {
		/*
		 * Before the looks at what there is to do: pairs with the
		 * barrier of whoever changes that and then wakes us.
		 */
		set_current_state(TASK_INTERRUPTIBLE);
		if (kthread_should_stop())
			break;
		if (!pass(data))
			schedule();
	}
	__set_current_state(TASK_RUNNING);
}
