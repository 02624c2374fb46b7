/* The bit length of a number, for which BPF has no instruction. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "stripes.h"

#define TWO(x) x, x
#define FOUR(x) TWO(x), TWO(x)
#define EIGHT(x) FOUR(x), FOUR(x)
#define SIXTEEN(x) EIGHT(x), EIGHT(x)

/* The number of significant bits of a byte. */
static const __u8 byte_length[256] = {
	0, 1, TWO(2), FOUR(3), EIGHT(4), SIXTEEN(5), SIXTEEN(6), SIXTEEN(6),
	SIXTEEN(7), SIXTEEN(7), SIXTEEN(7), SIXTEEN(7),
	SIXTEEN(8), SIXTEEN(8), SIXTEEN(8), SIXTEEN(8),
	SIXTEEN(8), SIXTEEN(8), SIXTEEN(8), SIXTEEN(8),
};

/* bit_length returns the number of significant bits of a number. */
static __always_inline __u32 bit_length(__u32 x)
{
	__u32 n = 0;

	if (x >> 16) {
		x >>= 16;
		n = 16;
	}
	if (x >> 8) {
		x >>= 8;
		n += 8;
	}
	return n + byte_length[x & 0xff];
}
