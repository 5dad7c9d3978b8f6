// SPDX-License-Identifier: MIT
/*
 * NOR or NAND flash in the memory of the lab's guest, with the times of a modelled chip.
 *
 * The kernel's own mtdram takes no time, nandsim is no NOR and spends its time busily, and block2mtd writes through
 * the page cache. This chip does one thing at a time, as a bare one does, and whoever waits for it sleeps, so that other
 * threads run meanwhile. The times are the lab's, which has them from the chip's profile. A NAND chip is read and
 * programmed in pages, has no bad blocks and shows no spare bytes.
 */
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/mtd/mtd.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

static ulong size_bytes, sector_bytes;
static ulong page_bytes; /* of NAND; 0 for NOR */
static ulong command_ns, read_page_ns, read_ps_per_byte, program_page_ns, program_ps_per_byte, erase_ns;
module_param(size_bytes, ulong, 0444);
module_param(sector_bytes, ulong, 0444);
module_param(page_bytes, ulong, 0444);
module_param(command_ns, ulong, 0444);
module_param(read_page_ns, ulong, 0444);
module_param(program_page_ns, ulong, 0444);
module_param(read_ps_per_byte, ulong, 0444);
module_param(program_ps_per_byte, ulong, 0444);
module_param(erase_ns, ulong, 0444);

/* Shorter times are paid together with the next ones: each wait costs the host more than they are worth. */
#define LEAST_NS 1000000

static DEFINE_MUTEX(chip);
static u64 owed_ns;
static u8 *cells;
static u32 *wear; /* erases of each sector */
static struct {
	u64 reads, read_bytes, read_ns;
	u64 programs, program_bytes, program_ns;
	u64 erases, erase_ns;
} counted;

/* Lets time pass; called with the chip held. */
static void take(u64 ns)
{
	ktime_t time;

	owed_ns += ns;
	if (owed_ns < LEAST_NS)
		return;
	time = ns_to_ktime(owed_ns);
	owed_ns = 0;
	set_current_state(TASK_UNINTERRUPTIBLE);
	schedule_hrtimeout(&time, HRTIMER_MODE_REL);
}

/* What pages and bytes of a command take. */
static u64 price(loff_t at, size_t length, u64 page_ns, u64 ps_per_byte)
{
	u64 pages = 0;

	if (page_bytes && length)
		pages = div_u64(at + length - 1, page_bytes) - div_u64(at, page_bytes) + 1;
	return command_ns + pages * page_ns + div_u64((u64)length * ps_per_byte, 1000);
}

static int flash_read(struct mtd_info *mtd, loff_t from, size_t length, size_t *done, u_char *to)
{
	u64 ns = price(from, length, read_page_ns, read_ps_per_byte);

	mutex_lock(&chip);
	take(ns);
	memcpy(to, cells + from, length);
	counted.reads++;
	counted.read_bytes += length;
	counted.read_ns += ns;
	mutex_unlock(&chip);
	*done = length;
	return 0;
}

/* The pieces, which lie one after the other on the chip, are one command. */
static int flash_writev(struct mtd_info *mtd, const struct kvec *pieces, unsigned long count, loff_t to, size_t *done)
{
	size_t length = 0, n;
	const u8 *from;
	u64 ns;

	for (n = 0; n < count; n++)
		length += pieces[n].iov_len;
	if (to < 0 || to > mtd->size || length > mtd->size - to)
		return -EINVAL;
	ns = price(to, length, program_page_ns, program_ps_per_byte);
	mutex_lock(&chip);
	take(ns);
	/* Programming clears bits and sets none. */
	for (; count; count--, pieces++) {
		from = pieces->iov_base;
		for (n = 0; n < pieces->iov_len; n++)
			cells[to++] &= from[n];
	}
	counted.programs++;
	counted.program_bytes += length;
	counted.program_ns += ns;
	mutex_unlock(&chip);
	*done = length;
	return 0;
}

static int flash_write(struct mtd_info *mtd, loff_t to, size_t length, size_t *done, const u_char *from)
{
	struct kvec piece = { .iov_base = (void *)from, .iov_len = length };

	return flash_writev(mtd, &piece, 1, to, done);
}

static int flash_erase(struct mtd_info *mtd, struct erase_info *what)
{
	u64 at;

	if (what->addr % sector_bytes || what->len % sector_bytes)
		return -EINVAL;
	for (at = what->addr; at < what->addr + what->len; at += sector_bytes) {
		mutex_lock(&chip);
		take(erase_ns);
		memset(cells + at, 0xff, sector_bytes);
		wear[div_u64(at, sector_bytes)]++;
		counted.erases++;
		counted.erase_ns += erase_ns;
		mutex_unlock(&chip);
	}
	return 0;
}

/* What happened so far, as JSON. */
static int flash_show(struct seq_file *out, void *nothing)
{
	ulong n;

	seq_printf(out, "{\"reads\":%llu,\"read_bytes\":%llu,\"read_ns\":%llu,", counted.reads, counted.read_bytes,
		   counted.read_ns);
	seq_printf(out, "\"programs\":%llu,\"program_bytes\":%llu,\"program_ns\":%llu,", counted.programs,
		   counted.program_bytes, counted.program_ns);
	seq_printf(out, "\"erases\":%llu,\"erase_ns\":%llu,\"wear\":[", counted.erases, counted.erase_ns);
	for (n = 0; n < size_bytes / sector_bytes; n++)
		seq_printf(out, n ? ",%u" : "%u", wear[n]);
	seq_puts(out, "]}\n");
	return 0;
}

static struct mtd_info flash = {
	.name = "flash",
	.owner = THIS_MODULE,
	.type = MTD_NORFLASH,
	.flags = MTD_CAP_NORFLASH,
	.writesize = 1,
	.writebufsize = 1,
	._read = flash_read,
	._write = flash_write,
	._erase = flash_erase,
};

static int __init flash_init(void)
{
	int error = -ENOMEM;

	if (!sector_bytes || !size_bytes || size_bytes % sector_bytes || sector_bytes > U32_MAX)
		return -EINVAL;
	if (page_bytes > U32_MAX || (page_bytes && sector_bytes % page_bytes))
		return -EINVAL;
	cells = vmalloc(size_bytes);
	wear = kvcalloc(size_bytes / sector_bytes, sizeof(*wear), GFP_KERNEL);
	if (!cells || !wear)
		goto fail;
	memset(cells, 0xff, size_bytes);
	flash.size = size_bytes;
	flash.erasesize = sector_bytes;
	if (page_bytes) {
		flash.type = MTD_NANDFLASH;
		flash.flags = MTD_CAP_NANDFLASH;
		flash.writesize = page_bytes;
		flash.writebufsize = page_bytes;
	} else {
		flash._writev = flash_writev;
	}
	error = -EIO;
	if (!proc_create_single("flash", 0444, NULL, flash_show))
		goto fail;
	error = mtd_device_register(&flash, NULL, 0);
	if (!error)
		return 0;
	remove_proc_entry("flash", NULL);
fail:
	kvfree(wear);
	vfree(cells);
	return error;
}

module_init(flash_init);
MODULE_DESCRIPTION("Flash with the times of a modelled chip");
MODULE_LICENSE("Dual MIT/GPL");
