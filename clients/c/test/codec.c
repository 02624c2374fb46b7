/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec, for comparison with package codec of the Go module, whose tests drive it:
 *
 *	codec lines              reads lines "e E K BITS..." and "d E K COUNT BYTES", in hexadecimal but for E, K and COUNT,
 *	                         and prints the bytes or the bits, or "malformed OFFSET TEXT"
 *	codec patterns E K STEP  codes each STEP-th float of all 2^32, with and without vectors, and prints a hash of the
 *	                         codes and one of what they decode to
 *	codec rate               prints GB/s of floats, of the fastest of some runs, with and without vectors
 *	codec calls              arguments that are refused, and libra_fit
 *
 * Arrays are as long as they must be, so that the sanitizer sees accesses behind them.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../internal.h"

#define CHECK(what)                                                                               \
	do {                                                                                      \
		if (!(what)) {                                                                    \
			fprintf(stderr, "%s:%d: %s\nlast error: %s\n", __FILE__, __LINE__, #what, \
				libra_last_error()->text);                                        \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

static void *room_for(size_t bytes)
{
	void *p = malloc(bytes ? bytes : 1);

	CHECK(p);
	return p;
}

static float *floats_of(const uint32_t *bits, size_t n)
{
	float *v = room_for(n * sizeof *v);

	if (n)
		memcpy(v, bits, n * sizeof *v);
	return v;
}

/* encode_both codes with and without vectors. The caller frees the codes. */
static uint8_t *encode_both(int bound, int scale, const float *values, size_t n, size_t *bytes)
{
	size_t room = LIBRA_CODED_MAX(n), plain_bytes;
	uint8_t *coded = room_for(room), *plain = room_for(room);
	struct coding c;

	CHECK(libra_encode(bound, scale, values, n, coded, room, bytes) == LIBRA_OK);
	CHECK(codec_begin(&c, "", bound, scale) == LIBRA_OK);
	plain_bytes = codec_encode_plain(&c, values, n, plain);
	CHECK(plain_bytes == *bytes && memcmp(plain, coded, plain_bytes) == 0);
	free(plain);
	return coded;
}

/* decode_both decodes with and without vectors, with the same result. */
static int decode_both(int bound, int scale, const uint8_t *coded, size_t bytes, float *values, size_t n)
{
	float *plain = room_for(n * sizeof *plain);
	struct coding c;
	struct coding_fault f;
	int code = libra_decode(bound, scale, coded, bytes, values, n);

	CHECK(codec_begin(&c, "", bound, scale) == LIBRA_OK);
	CHECK(codec_decode_plain(&c, coded, bytes, 0, plain, n, 0, &f) == (code == LIBRA_OK));
	CHECK(code == LIBRA_OK ? !n || memcmp(plain, values, n * sizeof *plain) == 0
			       : code == LIBRA_MALFORMED && libra_last_error()->index == f.offset &&
					 strstr(libra_last_error()->text, f.reason));
	free(plain);
	return code;
}

static void encode_line(int bound, int scale, char *rest)
{
	size_t n = 0, room = strlen(rest) / 9 + 1, bytes;
	uint32_t *bits = room_for(room * sizeof *bits);

	for (char *word = strtok(rest, " \n"); word; word = strtok(NULL, " \n"))
		bits[n++] = (uint32_t)strtoul(word, NULL, 16);
	float *values = floats_of(bits, n);
	uint8_t *coded = encode_both(bound, scale, values, n, &bytes);
	for (size_t i = 0; i < bytes; i++)
		printf("%02x", coded[i]);
	puts("");
	free(bits);
	free(values);
	free(coded);
}

static void decode_line(int bound, int scale, size_t n, const char *hex)
{
	size_t bytes = strspn(hex, "0123456789abcdef") / 2;
	uint8_t *coded = room_for(bytes);
	float *values = room_for(n * sizeof *values);

	for (size_t i = 0; i < bytes; i++) {
		unsigned byte;
		CHECK(sscanf(hex + 2 * i, "%2x", &byte) == 1);
		coded[i] = (uint8_t)byte;
	}
	if (decode_both(bound, scale, coded, bytes, values, n) == LIBRA_OK) {
		for (size_t i = 0; i < n; i++) {
			uint32_t bits;
			memcpy(&bits, values + i, sizeof bits);
			printf(i ? " %08x" : "%08x", bits);
		}
		puts("");
	} else {
		printf("malformed %llu %s\n", (unsigned long long)libra_last_error()->index, libra_last_error()->text);
	}
	free(coded);
	free(values);
}

static void lines(void)
{
	char *line = NULL;
	size_t room = 0;

	while (getline(&line, &room, stdin) > 0) {
		int bound, scale, at = 0;
		size_t n;
		if (sscanf(line, "e %d %d%n", &bound, &scale, &at) == 2) {
			encode_line(bound, scale, line + at);
		} else {
			CHECK(sscanf(line, "d %d %d %zu %n", &bound, &scale, &n, &at) == 3);
			decode_line(bound, scale, n, line + at);
		}
	}
	free(line);
}

static uint64_t hash_with(uint64_t hash, uint64_t word)
{
	return (hash ^ word) * 1099511628211u; /* FNV-1a */
}

static void patterns(int bound, int scale, uint64_t step)
{
	enum { N = 1024 };
	uint64_t codes = 14695981039346656037u, decoded = codes;
	uint32_t bits[N];

	for (uint64_t next = 0; next < (uint64_t)1 << 32;) {
		size_t n = 0, bytes;
		for (; n < N && next < (uint64_t)1 << 32; next += step)
			bits[n++] = (uint32_t)next;
		float *values = floats_of(bits, n);
		uint8_t *coded = encode_both(bound, scale, values, n, &bytes);
		CHECK(decode_both(bound, scale, coded, bytes, values, n) == LIBRA_OK);
		for (size_t i = 0; i < bytes; i++)
			codes = hash_with(codes, coded[i]);
		for (size_t i = 0; i < n; i++) {
			uint32_t after;
			memcpy(&after, values + i, sizeof after);
			decoded = hash_with(decoded, after);
		}
		free(values);
		free(coded);
	}
	printf("%016llx %016llx\n", (unsigned long long)codes, (unsigned long long)decoded);
}

static double now(void)
{
	struct timespec t;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &t) == 0);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void rate(void)
{
	enum { N = 1 << 16 };
	float *values = room_for(N * sizeof *values);
	uint8_t *coded = room_for(LIBRA_CODED_MAX(N));
	double fastest[4] = {1, 1, 1, 1};
	size_t bytes = 0;
	uint32_t random = 1;
	struct coding c;
	struct coding_fault f;

	for (int i = 0; i < N; i++) { /* half of them small */
		random = random * 1664525 + 1013904223;
		values[i] = ((float)(random >> 8) / (1 << 24) - 0.5f) * (random & 128 ? 0.02f : 0.0002f);
	}
	CHECK(codec_begin(&c, "", 10, 0) == LIBRA_OK);
	for (int run = 0; run < 100; run++) {
		double t[5] = {now()};
		CHECK(libra_encode(10, 0, values, N, coded, LIBRA_CODED_MAX(N), &bytes) == LIBRA_OK);
		t[1] = now();
		CHECK(libra_decode(10, 0, coded, bytes, values, N) == LIBRA_OK);
		t[2] = now();
		CHECK(codec_encode_plain(&c, values, N, coded) == bytes);
		t[3] = now();
		CHECK(codec_decode_plain(&c, coded, bytes, 0, values, N, 0, &f));
		t[4] = now();
		for (int i = 0; i < 4; i++)
			fastest[i] = t[i + 1] - t[i] < fastest[i] ? t[i + 1] - t[i] : fastest[i];
	}
	printf("ratio %.1f", 4.0 * N / (double)bytes);
	for (int i = 0; i < 4; i++)
		printf("%s %.1f", (const char *[]){", encode", ", decode", ", plain encode", ", plain decode"}[i],
		       4.0 * N / fastest[i] * 1e-9);
	puts(" GB/s");
	free(values);
	free(coded);
}

static void refused(int code, const char *text)
{
	CHECK(code == LIBRA_USAGE && strcmp(libra_last_error()->text, text) == 0);
}

static void calls(void)
{
	float v[3] = {0.25f, -0.1f, INFINITY};
	uint8_t coded[LIBRA_CODED_MAX(3)];
	size_t bytes = 99;

	refused(libra_encode(0, 0, v, 3, coded, sizeof coded, &bytes), "libra_encode: bound: 0 is not in [1, 14]");
	refused(libra_encode(15, 0, v, 3, coded, sizeof coded, &bytes), "libra_encode: bound: 15 is not in [1, 14]");
	refused(libra_encode(1, 127, v, 3, coded, sizeof coded, &bytes), "libra_encode: scale: 127 is not in [-126, 126]");
	refused(libra_decode(14, -127, coded, 3, v, 3), "libra_decode: scale: -127 is not in [-126, 126]");
	refused(libra_encode(10, 0, v, 3, coded, sizeof coded - 1, &bytes),
		"libra_encode: room for 14 bytes is too little for 3 values: give LIBRA_CODED_MAX(n)");
	CHECK(libra_encode(10, 0, v, SIZE_MAX / 4, coded, sizeof coded, &bytes) == LIBRA_USAGE);
	refused(libra_encode(10, 0, NULL, 3, coded, sizeof coded, &bytes), "libra_encode: values is NULL");
	refused(libra_encode(10, 0, v, 3, NULL, sizeof coded, &bytes), "libra_encode: coded is NULL");
	refused(libra_encode(10, 0, v, 3, coded, sizeof coded, NULL), "libra_encode: bytes is NULL");
	refused(libra_decode(10, 0, NULL, 3, v, 3), "libra_decode: coded is NULL");
	refused(libra_decode(10, 0, coded, 3, NULL, 3), "libra_decode: values is NULL");
	CHECK(bytes == 99);
	CHECK(libra_encode(10, 0, NULL, 0, coded, sizeof coded, &bytes) == LIBRA_OK && bytes == 0);
	CHECK(libra_decode(10, 0, NULL, 0, NULL, 0) == LIBRA_OK);
	CHECK(libra_decode(10, 0, coded, 1, NULL, 0) == LIBRA_MALFORMED);
	CHECK(strcmp(libra_code_name(LIBRA_MALFORMED), "MALFORMED") == 0);

	CHECK(libra_fit(NULL, 0) == 0 && libra_fit(v, 3) == 1 && libra_fit(v + 1, 1) == 3 && libra_fit(v + 2, 1) == 0);
	const float edges[] = {0.5f, 1, -0x1.fffffep-1f, 0x1p127f, 0x1p-127f, 0x1p-149f, 0, NAN, 0x1p-126f};
	const int scales[] = {0, -1, 0, -126, 126, 126, 0, 0, 125};
	for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
		CHECK(libra_fit(edges + i, 1) == scales[i]);
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "lines") == 0)
		lines();
	else if (argc == 5 && strcmp(argv[1], "patterns") == 0)
		patterns(atoi(argv[2]), atoi(argv[3]), strtoull(argv[4], NULL, 10));
	else if (argc == 2 && strcmp(argv[1], "rate") == 0)
		rate();
	else if (argc == 2 && strcmp(argv[1], "calls") == 0)
		calls();
	else
		return 2;
	return 0;
}
