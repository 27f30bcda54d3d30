// SPDX-License-Identifier: GPL-2.0
/*
 * Time and scheduling.
 */
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/sched/signal.h>
#include <vhost_net_rs/helpers.h>

u64 vnr_local_clock(void)
{
	return local_clock();
}

bool vnr_must_yield(void)
{
	return need_resched() || signal_pending(current);
}

bool vnr_signal_pending(void)
{
	return signal_pending(current);
}

void vnr_cond_resched(void)
{
	cond_resched();
}

void vnr_migrate_disable(void)
{
	migrate_disable();
}

void vnr_migrate_enable(void)
{
	migrate_enable();
}

void vnr_set_running(void)
{
	__set_current_state(TASK_RUNNING);
}
