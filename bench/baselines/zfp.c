//go:build ignore
// SPDX-License-Identifier: Apache-2.0
/*
 * Shortens and restores gradients by zfp, within an absolute bound of the error, on one core.
 *
 *   zfp VALUES TOLERANCE NANOSECONDS
 *
 * Descriptor 3 is memory of 2 * VALUES floats: the values, and behind them room for what comes back. Each
 * direction is repeated for some time, three times at least. Prints the CPU time of the fastest of them,
 * as bench/codec takes its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <zfp.h>

/* now returns CPU time, which other programs on the machine do not lengthen. */
static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

/* fastest returns the time of the fastest of some runs, and the last one's bytes; -1 after a failure. */
static long fastest(size_t (*run)(zfp_stream *, zfp_field *), zfp_stream *stream, zfp_field *field, long least, size_t *bytes)
{
	long best = -1, begun = now();

	for (int i = 0; i < 3 || now() - begun < least; i++) {
		long before = now(), took;
		zfp_stream_rewind(stream);
		*bytes = run(stream, field);
		took = now() - before;
		if (!*bytes)
			return -1;
		if (best < 0 || took < best)
			best = took;
	}
	return best;
}

static size_t compress(zfp_stream *stream, zfp_field *field)
{
	return zfp_compress(stream, field);
}

static size_t decompress(zfp_stream *stream, zfp_field *field)
{
	return zfp_decompress(stream, field);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	size_t values = strtoul(argv[1], NULL, 10), bytes, read;
	double tolerance = strtod(argv[2], NULL);
	long least = strtol(argv[3], NULL, 10);
	float *floats = mmap(NULL, 2 * values * sizeof(float), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, 3, 0);

	if (floats == MAP_FAILED) {
		perror("zfp: map the values");
		return 1;
	}
	zfp_field *given = zfp_field_1d(floats, zfp_type_float, values);
	zfp_field *restored = zfp_field_1d(floats + values, zfp_type_float, values);
	zfp_stream *stream = zfp_stream_open(NULL);
	zfp_stream_set_accuracy(stream, tolerance);
	size_t room = zfp_stream_maximum_size(stream, given);
	void *buffer = malloc(room);

	if (!room || !buffer) {
		fprintf(stderr, "zfp: no room for %zu values\n", values);
		return 1;
	}
	zfp_stream_set_bit_stream(stream, stream_open(buffer, room));
	long encode = fastest(compress, stream, given, least, &bytes);
	long decode = fastest(decompress, stream, restored, least, &read);
	if (encode < 0 || decode < 0 || read != bytes) {
		fprintf(stderr, "zfp: %zu bytes were written, %zu read\n", bytes, read);
		return 1;
	}
	printf("{\"encode_ns\":%ld,\"decode_ns\":%ld,\"bytes\":%zu}\n", encode, decode, bytes);
	return 0;
}
