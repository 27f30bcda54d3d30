// SPDX-License-Identifier: GPL-2.0
/*
 * Busy polling: what a device begins with, and who else is there.
 */
#include <linux/compiler.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/pid.h>
#include <linux/rculist.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/stat.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <uapi/linux/vhost_net_rs.h>
#include <vhost_net_rs/helpers.h>

/* Threads of the owner that are looked at; more are taken to run. */
#define THREADS_MAX 512

static uint poll_us;
module_param(poll_us, uint, 0644);
MODULE_PARM_DESC(poll_us,
		 "Window for busy polling that a device begins with, in microseconds (default: 0, none)");

static uint poll_max_us;
module_param(poll_max_us, uint, 0644);
MODULE_PARM_DESC(poll_max_us,
		 "Longest time that any vring polls in vain, in microseconds, at once (default: 0, no limit)");

static const char * const policies[] = {
	[VHOST_NET_RS_POLL_FIXED] = "fixed",
	[VHOST_NET_RS_POLL_ADAPTIVE] = "adaptive",
	[VHOST_NET_RS_POLL_CONTINUOUS] = "continuous",
};

static uint poll_policy = VHOST_NET_RS_POLL_FIXED;

static int set_policy(const char *val, const struct kernel_param *kp)
{
	int policy = sysfs_match_string(policies, val);

	if (policy < 0)
		return policy;
	WRITE_ONCE(*(uint *)kp->arg, policy);
	return 0;
}

static int get_policy(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", policies[READ_ONCE(*(uint *)kp->arg)]);
}

static const struct kernel_param_ops policy_ops = {
	.set = set_policy,
	.get = get_policy,
};

module_param_cb(poll_policy, &policy_ops, &poll_policy, 0644);
__MODULE_PARM_TYPE(poll_policy, "string");
MODULE_PARM_DESC(poll_policy,
		 "Policy of busy polling that a device begins with: fixed, adaptive or continuous (default: fixed)");

static bool poll_competitor;
module_param(poll_competitor, bool, 0644);
MODULE_PARM_DESC(poll_competitor,
		 "A device begins with: no polling while another task wants the CPU (default: N)");

static bool poll_guest;
module_param(poll_guest, bool, 0644);
MODULE_PARM_DESC(poll_guest,
		 "A device begins with: no polling while no thread of the owner is on a CPU (default: N)");

static uint poll_start_rate;
module_param(poll_start_rate, uint, 0644);
MODULE_PARM_DESC(poll_start_rate,
		 "Packets per millisecond from which a device polls continuously, in that policy (default: 0, never)");

static uint poll_stop_idle = 1000;

static int set_stop_idle(const char *val, const struct kernel_param *kp)
{
	return param_set_uint_minmax(val, kp, 1, VHOST_NET_RS_POLL_MAX_STOP_IDLE);
}

static const struct kernel_param_ops stop_idle_ops = {
	.set = set_stop_idle,
	.get = param_get_uint,
};

module_param_cb(poll_stop_idle, &stop_idle_ops, &poll_stop_idle, 0644);
__MODULE_PARM_TYPE(poll_stop_idle, "uint");
MODULE_PARM_DESC(poll_stop_idle,
		 "Microseconds without a packet that end continuous polling, 1 to 1000000 (default: 1000)");

void vnr_param_poll(struct vnr_poll_defaults *out)
{
	out->window = READ_ONCE(poll_us);
	out->policy = READ_ONCE(poll_policy);
	out->flags = 0;
	if (READ_ONCE(poll_competitor))
		out->flags |= VHOST_NET_RS_POLL_COMPETITOR;
	if (READ_ONCE(poll_guest))
		out->flags |= VHOST_NET_RS_POLL_GUEST;
	out->start_rate = READ_ONCE(poll_start_rate);
	out->stop_idle = READ_ONCE(poll_stop_idle);
}

u32 vnr_param_poll_max_us(void)
{
	return READ_ONCE(poll_max_us);
}

bool vnr_single_task_running(void)
{
	return single_task_running();
}

struct pid *vnr_current_process(void)
{
	return get_pid(task_tgid(current));
}

void vnr_put_process(struct pid *process)
{
	put_pid(process);
}

bool vnr_process_runs(struct pid *process)
{
	struct task_struct *leader, *thread;
	unsigned int left = THREADS_MAX;
	bool runs = false;

	rcu_read_lock();
	leader = pid_task(process, PIDTYPE_TGID);
	if (leader) {
		for_each_thread(leader, thread) {
			if (thread->flags & PF_USER_WORKER)
				continue;
			if (READ_ONCE(thread->on_cpu) || !--left) {
				runs = true;
				break;
			}
		}
	}
	rcu_read_unlock();

	return runs;
}
