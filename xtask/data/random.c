// SPDX-License-Identifier: MIT
/*
 * The host's random bytes for the lab's guest, which follow from LAB_SEED: what the guest's kernel decides by chance
 * (ext4 in which group a directory begins, and when it writes the tables that mkfs left out) is decided alike in each
 * run. The guest is loaded with this before the C library, whose getrandom() it stands for (ld.so(8), LD_PRELOAD).
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

static uint64_t state;

__attribute__((constructor)) static void begin(void)
{
	const char *seed = getenv("LAB_SEED");

	state = seed ? strtoull(seed, NULL, 10) : 0;
}

/* SplitMix64 (Steele, Lea and Flood, OOPSLA '14). */
static uint64_t next(void)
{
	uint64_t mixed = state += 0x9E3779B97F4A7C15;

	mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9;
	mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB;
	return mixed ^ mixed >> 31;
}

ssize_t getrandom(void *buffer, size_t length, unsigned int flags)
{
	unsigned char *bytes = buffer;

	(void)flags;
	for (size_t at = 0; at < length; at++)
		bytes[at] = (unsigned char)next();
	return (ssize_t)length;
}
