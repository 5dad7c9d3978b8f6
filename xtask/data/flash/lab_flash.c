// SPDX-License-Identifier: MIT
/*
 * NOR or NAND flash in the memory of the lab's guest, with the times of a modelled chip.
 *
 * The kernel's own mtdram takes no time, nandsim is no NOR and spends its time busily, and block2mtd writes through
 * the page cache. This chip does one thing at a time, as a bare one does, and whoever waits for it sleeps, so that other
 * threads run meanwhile. The times are the lab's, which has them from the chip's profile. A NAND chip is read and
 * programmed in pages, has no bad blocks and shows no spare bytes.
 *
 * With log_bytes, each program and each erase is recorded when it takes effect; /proc/flash_log has the records since
 * the last write to it. A log that became too long cannot be read. /proc/flash_image is the content of the chip; it is
 * written while nothing uses the chip.
 */
#include <linux/fs.h>
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
static ulong log_bytes; /* room for records; 0 for no log */
static ulong command_ns, read_page_ns, read_ps_per_byte, program_page_ns, program_ps_per_byte, erase_ns;
module_param(size_bytes, ulong, 0444);
module_param(sector_bytes, ulong, 0444);
module_param(page_bytes, ulong, 0444);
module_param(log_bytes, ulong, 0444);
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

/* A record of the log, in the machine's order of bytes. The data of a program follows it. */
struct record {
	u64 began_ns, ended_ns, at;
	u32 length, verb;
};

enum { PROGRAM, ERASE };

static u8 *log_start;
static size_t log_used;
static bool log_is_full;

/* Returns the time for a record. Where time travels, each look at the clock takes some, so none is for nothing. */
static u64 moment(void)
{
	return log_start ? ktime_get_ns() : 0;
}

/* Adds a record, whose data of data_bytes the caller writes to the returned place; called with the chip held. */
static u8 *record(u32 verb, u64 began_ns, u64 at, size_t length, size_t data_bytes)
{
	struct record head = {
		.began_ns = began_ns, .ended_ns = moment(), .at = at, .length = length, .verb = verb,
	};
	u8 *place;

	if (!log_start || log_is_full || log_bytes - log_used < sizeof(head) ||
	    log_bytes - log_used - sizeof(head) < data_bytes) {
		log_is_full = true;
		return NULL;
	}
	place = log_start + log_used;
	memcpy(place, &head, sizeof(head));
	log_used += sizeof(head) + data_bytes;
	return place + sizeof(head);
}

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
	u64 ns, began_ns;
	u8 *data;

	for (n = 0; n < count; n++)
		length += pieces[n].iov_len;
	if (to < 0 || to > mtd->size || length > mtd->size - to)
		return -EINVAL;
	ns = price(to, length, program_page_ns, program_ps_per_byte);
	mutex_lock(&chip);
	began_ns = moment();
	take(ns);
	data = record(PROGRAM, began_ns, to, length, length);
	/* Programming clears bits and sets none. */
	for (; count; count--, pieces++) {
		from = pieces->iov_base;
		if (data) {
			memcpy(data, from, pieces->iov_len);
			data += pieces->iov_len;
		}
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
	u64 at, began_ns;

	if (what->addr % sector_bytes || what->len % sector_bytes)
		return -EINVAL;
	for (at = what->addr; at < what->addr + what->len; at += sector_bytes) {
		mutex_lock(&chip);
		began_ns = moment();
		take(erase_ns);
		record(ERASE, began_ns, at, sector_bytes, 0);
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

static ssize_t log_read(struct file *file, char __user *to, size_t length, loff_t *at)
{
	ssize_t done = -EOVERFLOW;

	mutex_lock(&chip);
	if (!log_is_full)
		done = simple_read_from_buffer(to, length, at, log_start, log_used);
	mutex_unlock(&chip);
	return done;
}

/* Whatever is written, the log begins anew. */
static ssize_t log_write(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	mutex_lock(&chip);
	log_used = 0;
	log_is_full = false;
	mutex_unlock(&chip);
	return length;
}

static ssize_t image_read(struct file *file, char __user *to, size_t length, loff_t *at)
{
	ssize_t done;

	mutex_lock(&chip);
	done = simple_read_from_buffer(to, length, at, cells, size_bytes);
	mutex_unlock(&chip);
	return done;
}

static ssize_t image_write(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	ssize_t done;

	mutex_lock(&chip);
	done = simple_write_to_buffer(cells, size_bytes, at, from, length);
	mutex_unlock(&chip);
	return done ? done : -ENOSPC;
}

static const struct proc_ops log_ops = {
	.proc_read = log_read,
	.proc_write = log_write,
	.proc_lseek = default_llseek,
};

static const struct proc_ops image_ops = {
	.proc_read = image_read,
	.proc_write = image_write,
	.proc_lseek = default_llseek,
};

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
	if (log_bytes)
		log_start = vmalloc(log_bytes);
	if (!cells || !wear || (log_bytes && !log_start))
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
	if (!proc_create("flash_image", 0600, NULL, &image_ops))
		goto fail_image;
	if (log_start && !proc_create("flash_log", 0600, NULL, &log_ops))
		goto fail_log;
	error = mtd_device_register(&flash, NULL, 0);
	if (!error)
		return 0;
	if (log_start)
		remove_proc_entry("flash_log", NULL);
fail_log:
	remove_proc_entry("flash_image", NULL);
fail_image:
	remove_proc_entry("flash", NULL);
fail:
	vfree(log_start);
	kvfree(wear);
	vfree(cells);
	return error;
}

module_init(flash_init);
MODULE_DESCRIPTION("Flash with the times of a modelled chip");
MODULE_LICENSE("Dual MIT/GPL");
