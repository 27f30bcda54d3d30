/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Switches the PC speaker on and ends. scripts/vm --icount: while the speaker is on, QEMU's audio timer runs
 * and cuts the turns that two vCPUs take. The stock kernel has no /dev/port and no speaker driver.
 */
	.globl	_start
_start:
	mov	$172, %eax		/* iopl(3) */
	mov	$3, %edi
	syscall
	test	%eax, %eax
	jnz	1f
	mov	$3, %al			/* timer 2 runs, speaker follows it */
	out	%al, $0x61
	xor	%eax, %eax
1:	mov	%eax, %edi
	mov	$60, %eax		/* exit() */
	syscall
