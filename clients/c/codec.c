/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes of gradients: package codec of the Go module, again, see docs/codec.md. A code is put into the high bytes of a
 * word of 32 bits, so that a sign needs no shift.
 */
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define SIGN 0x80000000u
#define GROUP 64 /* values with a byte of marks */
#define BURST 8  /* values with 16 bits of tags */
/* The most bytes of a group. Nothing that is read or written 16 bytes at a time, from where four codes start, is beyond. */
#define MAX_GROUP (1 + GROUP / BURST * 2 + GROUP * 4)

/* power_of_two returns 2^e, which is a normal number. */
static float power_of_two(int e)
{
	uint32_t bits = (uint32_t)(e + 127) << 23;
	float f;

	memcpy(&f, &bits, sizeof f);
	return f;
}

/* codec_begin fills in what a bound and a scale mean, or returns an error. */
int codec_begin(struct coding *c, const char *what, int bound, int scale)
{
	int half = bound / 2;

	if (bound < 1 || bound > 14)
		return error_set(LIBRA_USAGE, "%s: bound: %d is not in [1, 14]", what, bound);
	if (scale < -126 || scale > 126)
		return error_set(LIBRA_USAGE, "%s: scale: %d is not in [-126, 126]", what, scale);
	*c = (struct coding){
		.up = power_of_two(scale), .down = power_of_two(-scale),
		.one = power_of_two(-bound), .two = power_of_two(-half),
		.unit = {0, power_of_two(31 + half), power_of_two(31), 0},
		.inverse = {0, power_of_two(-31 - half), power_of_two(-31), 0},
	};
	return LIBRA_OK;
}

/* value_code returns a value's tag, and its code in the high bytes. */
static unsigned value_code(const struct coding *c, uint32_t bits, uint32_t *code)
{
	uint32_t magnitude = bits & ~SIGN;
	unsigned tag;
	float m;

	memcpy(&m, &magnitude, sizeof m);
	m *= c->up;
	*code = bits;
	if (!(m < 1))
		return 3; /* NaN, too */
	if (m < c->one)
		return 0;
	tag = m < c->two ? 1 : 2;
	*code = (bits & SIGN) | (uint32_t)(m * c->unit[tag]);
	return tag;
}

/* value_bits is its inverse. */
static uint32_t value_bits(const struct coding *c, unsigned tag, uint32_t code)
{
	uint32_t bits;
	float m;

	if (tag == 0 || tag == 3)
		return code;
	m = (float)(code & ~SIGN);
	m *= c->inverse[tag];
	m *= c->down;
	memcpy(&bits, &m, sizeof bits);
	return bits | (code & SIGN);
}

/* size_of_tag: 0, 1, 2 or 4 bytes. */
static size_t size_of_tag(unsigned tag)
{
	return ((size_t)1 << tag) / 2;
}

/* size_of_tags is that of the codes of a burst. */
static size_t size_of_tags(unsigned tags)
{
	size_t size = 0;

	for (; tags; tags >>= 2)
		size += size_of_tag(tags & 3);
	return size;
}

static unsigned read_tags(const uint8_t *at)
{
	return (unsigned)at[0] << 8 | at[1];
}

/* marks_beyond returns the mark bits of bursts that a group with this number of values does not have. */
static unsigned marks_beyond(size_t values)
{
	return values >= GROUP ? 0 : 0xffu >> ((values + BURST - 1) / BURST);
}

/* tags_beyond returns the tag bits of values that a burst with this number of values does not have. */
static unsigned tags_beyond(size_t values)
{
	return values >= BURST ? 0 : 0xffffu >> (2 * values);
}

/* encode_burst writes tags and codes, and returns the tags. */
static unsigned encode_burst(const struct coding *c, const float *values, size_t n, uint8_t *to, uint8_t **end)
{
	uint8_t *at = to + 2;
	unsigned tags = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits, code;
		memcpy(&bits, values + i, sizeof bits);
		unsigned tag = value_code(c, bits, &code);
		tags |= tag << (14 - 2 * i);
		for (size_t left = size_of_tag(tag); left > 0; left--, code <<= 8)
			*at++ = (uint8_t)(code >> 24);
	}
	to[0] = (uint8_t)(tags >> 8);
	to[1] = (uint8_t)tags;
	*end = at;
	return tags;
}

/* codec_encode_plain returns the number of bytes; there is room for LIBRA_CODED_MAX(n). */
size_t codec_encode_plain(const struct coding *c, const float *values, size_t n, uint8_t *coded)
{
	uint8_t *at = coded, *end;

	while (n > 0) {
		size_t group = n < GROUP ? n : GROUP;
		uint8_t *marks = at++;

		*marks = 0;
		n -= group;
		for (unsigned mark = 0x80; group > 0; mark >>= 1) {
			size_t burst = group < BURST ? group : BURST;
			if (encode_burst(c, values, burst, at, &end)) {
				*marks |= (uint8_t)mark;
				at = end;
			}
			values += burst;
			group -= burst;
		}
	}
	return (size_t)(at - coded);
}

/* fault_at fills in a fault and returns false. */
static bool fault_at(struct coding_fault *f, size_t offset, size_t value, const char *reason)
{
	*f = (struct coding_fault){offset, value, reason};
	return false;
}

/* codec_decode_plain decodes from a value and a byte on, where a group begins, to the ends of both arrays. */
bool codec_decode_plain(const struct coding *c, const uint8_t *coded, size_t bytes, size_t at, float *values, size_t n,
			size_t value, struct coding_fault *f)
{
	static const char truncated[] = "the codes end too early";

	while (value < n) {
		size_t group = n - value < GROUP ? n - value : GROUP;
		if (at == bytes)
			return fault_at(f, at, value, truncated);
		unsigned marks = coded[at];
		if (marks & marks_beyond(group))
			return fault_at(f, at, value, "a burst beyond the last value is marked");
		at++;
		for (; group > 0; marks <<= 1) {
			size_t burst = group < BURST ? group : BURST;
			unsigned tags = 0;
			if (marks & 0x80) {
				if (bytes - at < 2)
					return fault_at(f, at, value, truncated);
				tags = read_tags(coded + at);
				if (tags & tags_beyond(burst))
					return fault_at(f, at, value, "a value beyond the last has a tag");
				if (bytes - at - 2 < size_of_tags(tags))
					return fault_at(f, at + 2, value, truncated);
				if (!tags)
					return fault_at(f, at, value, "a burst of zeros is marked");
				at += 2;
			}
			for (size_t i = 0; i < burst; i++) {
				unsigned tag = tags >> (14 - 2 * i) & 3;
				uint32_t code = 0;
				for (size_t b = 0; b < size_of_tag(tag); b++)
					code |= (uint32_t)coded[at++] << (24 - 8 * b);
				code = value_bits(c, tag, code);
				memcpy(values + value++, &code, sizeof code);
			}
			group -= burst;
		}
	}
	return at == bytes || fault_at(f, at, value, "bytes are left over");
}

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

/* What the tags of four values select: the bytes of their codes, the shuffle that packs them, and its inverse. */
static uint8_t lengths[256], packing[256][16], unpacking[256][16];
static pthread_once_t tables_made = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
	memset(packing, 0x80, sizeof packing); /* writes a zero */
	memset(unpacking, 0x80, sizeof unpacking);
	for (unsigned tags = 0; tags < 256; tags++) {
		size_t n = 0;
		for (size_t lane = 0; lane < 4; lane++)
			for (size_t b = 0; b < size_of_tag(tags >> (6 - 2 * lane) & 3); b++) {
				size_t byte = 4 * lane + 3 - b; /* big-endian, from the lane's high byte down */
				packing[tags][n] = (uint8_t)byte;
				unpacking[tags][byte] = (uint8_t)n++;
			}
		lengths[tags] = (uint8_t)n;
	}
}

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && pthread_once(&tables_made, make_tables) == 0;
}

AVX2 static __m128i load_row(const uint8_t *row)
{
	return _mm_loadu_si128((const __m128i *)(const void *)row);
}

/* encode_groups codes groups of 64 values and returns where the codes end; there is room for MAX_GROUP bytes each. */
AVX2 static uint8_t *encode_groups(const struct coding *c, const float *values, size_t groups, uint8_t *to)
{
	const __m256 up = _mm256_set1_ps(c->up), one = _mm256_set1_ps(c->one), two = _mm256_set1_ps(c->two);
	const __m256 unit1 = _mm256_set1_ps(c->unit[1]), unit2 = _mm256_set1_ps(c->unit[2]);
	const __m256 top = _mm256_set1_ps(1), sign = _mm256_set1_ps(-0.0f);
	/* From masks of words, the tags of four lanes, the first on top, as the signs of eight bytes. */
	const __m256i order = _mm256_set_epi64x((int64_t)0x8080808080808080u, 0x020006040a080e0c,
						(int64_t)0x8080808080808080u, 0x020006040a080e0c);

	for (; groups > 0; groups--) {
		uint8_t *marks = to++;
		unsigned marked = 0;
		for (int i = 0; i < GROUP / BURST; i++, values += BURST) {
			__m256 x = _mm256_loadu_ps(values), m = _mm256_mul_ps(_mm256_andnot_ps(sign, x), up);
			/* Which lanes have at least tag 1, 2, 3: not less, so NaN has. */
			__m256 is1 = _mm256_cmp_ps(m, one, _CMP_NLT_UQ);
			__m256 is2 = _mm256_cmp_ps(m, two, _CMP_NLT_UQ);
			__m256 is3 = _mm256_cmp_ps(m, top, _CMP_NLT_UQ);
			__m256 odd = _mm256_xor_ps(_mm256_xor_ps(is1, is2), is3);
			__m256i words = _mm256_blend_epi16(_mm256_castps_si256(odd), _mm256_castps_si256(is2), 0xaa);
			unsigned tags = (unsigned)_mm256_movemask_epi8(_mm256_shuffle_epi8(words, order));
			unsigned tags1 = tags & 0xff, tags2 = tags >> 16;

			/* Cut. Lanes with tag 3 overflow, and are not used. */
			m = _mm256_mul_ps(m, _mm256_blendv_ps(unit1, unit2, is2));
			m = _mm256_or_ps(_mm256_castsi256_ps(_mm256_cvttps_epi32(m)), _mm256_and_ps(x, sign));
			__m256i code = _mm256_castps_si256(_mm256_blendv_ps(m, x, is3));

			/* Tags and codes are written even if the next burst takes their place. */
			to[0] = (uint8_t)tags1;
			to[1] = (uint8_t)tags2;
			__m128i low = _mm_shuffle_epi8(_mm256_castsi256_si128(code), load_row(packing[tags1]));
			__m128i high = _mm_shuffle_epi8(_mm256_extracti128_si256(code, 1), load_row(packing[tags2]));
			_mm_storeu_si128((__m128i *)(void *)(to + 2), low);
			_mm_storeu_si128((__m128i *)(void *)(to + 2 + lengths[tags1]), high);
			marked = marked << 1 | (tags != 0);
			to += tags ? 2u + lengths[tags1] + lengths[tags2] : 0;
		}
		*marks = (uint8_t)marked;
	}
	return to;
}

/* decode_groups decodes groups of 64 values, stops where one would begin after `last` or has a marked burst of zeros,
 * and returns how many. *src is where the last one ends. There are MAX_GROUP bytes from `last` on. */
AVX2 static size_t decode_groups(const struct coding *c, const uint8_t **src, const uint8_t *last, float *values,
				 size_t groups)
{
	const __m256 inverse = _mm256_setr_ps(0, c->inverse[1], c->inverse[2], 0, 0, c->inverse[1], c->inverse[2], 0);
	const __m256 down = _mm256_set1_ps(c->down);
	const __m256 raw = _mm256_castsi256_ps(_mm256_setr_epi32(0, 0, 0, -1, 0, 0, 0, -1));
	const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), shift = _mm256_setr_epi32(14, 12, 10, 8, 6, 4, 2, 0);
	const uint8_t *at = *src;
	size_t done = 0;

	for (; done < groups && at <= last; done++, values += GROUP, *src = at) {
		unsigned marks = *at++;
		for (int i = 0; i < GROUP / BURST; i++)
			_mm256_storeu_ps(values + BURST * i, _mm256_setzero_ps());
		while (marks) {
			int burst = __builtin_clz(marks) - 24;
			unsigned tags = read_tags(at);
			if (!tags)
				return done;
			const uint8_t *second = at + 2 + lengths[tags >> 8];
			__m256i code = _mm256_set_m128i(_mm_shuffle_epi8(load_row(second), load_row(unpacking[tags & 0xff])),
							_mm_shuffle_epi8(load_row(at + 2), load_row(unpacking[tags >> 8])));
			/* By the two low bits of each lane. */
			__m256i tag = _mm256_srlv_epi32(_mm256_set1_epi32((int)tags), shift);
			__m256 m = _mm256_cvtepi32_ps(_mm256_and_si256(code, magnitude));
			m = _mm256_mul_ps(_mm256_mul_ps(m, _mm256_permutevar_ps(inverse, tag)), down);
			m = _mm256_or_ps(m, _mm256_castsi256_ps(_mm256_andnot_si256(magnitude, code)));
			m = _mm256_blendv_ps(m, _mm256_castsi256_ps(code), _mm256_permutevar_ps(raw, tag));
			_mm256_storeu_ps(values + BURST * burst, m);
			marks &= ~(0x80u >> burst);
			at = second + lengths[tags & 0xff];
		}
	}
	return done;
}

/* group_ends returns whether a group has no burst and no tag beyond its number of values. Codes that are cut short are
 * checked elsewhere. */
static bool group_ends(const uint8_t *at, const uint8_t *end, size_t values)
{
	unsigned marks = *at++;

	if (marks & marks_beyond(values))
		return false;
	for (; values > BURST; values -= BURST, marks <<= 1)
		if (marks & 0x80) {
			if (end - at < 2)
				return false;
			at += 2 + size_of_tags(read_tags(at));
		}
	return !(marks & 0x80) || (end - at >= 2 && !(read_tags(at) & tags_beyond(values)));
}

size_t codec_encode(const struct coding *c, const float *values, size_t n, uint8_t *coded)
{
	uint8_t *end = coded;

	if (!has_avx2())
		return codec_encode_plain(c, values, n, coded);
	if (n >= GROUP)
		end = encode_groups(c, values, n / GROUP, coded);
	if (n % GROUP) { /* zeros behind them do not change the codes */
		float group[GROUP] = {0};
		uint8_t codes[MAX_GROUP];
		memcpy(group, values + n / GROUP * GROUP, n % GROUP * sizeof *values);
		size_t bytes = (size_t)(encode_groups(c, group, 1, codes) - codes);
		memcpy(end, codes, bytes);
		end += bytes;
	}
	return (size_t)(end - coded);
}

/* codec_decode decodes groups as long as the longest of them cannot end beyond the codes. The rest gets bytes behind it
 * which may be read. Whatever is wrong, the plain code finds it again. */
bool codec_decode(const struct coding *c, const uint8_t *coded, size_t bytes, float *values, size_t n,
		  struct coding_fault *f)
{
	size_t value = 0, at = 0;

	if (!has_avx2())
		return codec_decode_plain(c, coded, bytes, 0, values, n, 0, f);
	if (bytes >= MAX_GROUP) {
		const uint8_t *src = coded;
		value = decode_groups(c, &src, coded + bytes - MAX_GROUP, values, n / GROUP) * GROUP;
		at = (size_t)(src - coded);
	}
	size_t rest = bytes - at;
	if (value < n && rest > 0 && rest < MAX_GROUP) {
		uint8_t tail[2 * MAX_GROUP] = {0};
		const uint8_t *src = tail, *end = tail + rest;
		memcpy(tail, coded + at, rest);
		size_t next = value + decode_groups(c, &src, end - 1, values + value, (n - value) / GROUP) * GROUP;
		if (next < n && n - next < GROUP && src < end && group_ends(src, end, n - next)) {
			float group[GROUP];
			if (decode_groups(c, &src, src, group, 1)) {
				memcpy(values + next, group, (n - next) * sizeof *values);
				next = n;
			}
		}
		if (next == n && src == end)
			return true;
	}
	return codec_decode_plain(c, coded, bytes, at, values, n, value, f);
}

#else

size_t codec_encode(const struct coding *c, const float *values, size_t n, uint8_t *coded)
{
	return codec_encode_plain(c, values, n, coded);
}

bool codec_decode(const struct coding *c, const uint8_t *coded, size_t bytes, float *values, size_t n,
		  struct coding_fault *f)
{
	return codec_decode_plain(c, coded, bytes, 0, values, n, 0, f);
}

#endif

int libra_encode(int bound, int scale, const float *values, size_t n, uint8_t *coded, size_t room, size_t *bytes)
{
	struct coding c;
	int code = codec_begin(&c, "libra_encode", bound, scale);

	if (code)
		return code;
	if (!bytes || !coded || (!values && n > 0))
		return error_set(LIBRA_USAGE, "libra_encode: %s is NULL", !bytes ? "bytes" : !coded ? "coded" : "values");
	if (n > SIZE_MAX / 8 || room < LIBRA_CODED_MAX(n))
		return error_set(LIBRA_USAGE, "libra_encode: room for %zu bytes is too little for %zu values: give "
				 "LIBRA_CODED_MAX(n)", room, n);
	*bytes = codec_encode(&c, values, n, coded);
	return LIBRA_OK;
}

int libra_decode(int bound, int scale, const uint8_t *coded, size_t bytes, float *values, size_t n)
{
	struct coding c;
	struct coding_fault f;
	int code = codec_begin(&c, "libra_decode", bound, scale);

	if (code)
		return code;
	if ((!coded && bytes > 0) || (!values && n > 0))
		return error_set(LIBRA_USAGE, "libra_decode: %s is NULL", !coded && bytes > 0 ? "coded" : "values");
	if (codec_decode(&c, coded, bytes, values, n, &f))
		return LIBRA_OK;
	struct libra_error *e = error_new(LIBRA_MALFORMED);
	e->index = f.offset;
	snprintf(e->text, sizeof e->text, "libra_decode: malformed at byte %zu, value %zu: %s; decode the bytes of one "
		 "encoding, all of them, with its number of values", f.offset, f.value, f.reason);
	return LIBRA_MALFORMED;
}

int libra_fit(const float *values, size_t n)
{
	uint32_t most = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, values + i, sizeof bits);
		bits &= ~SIGN;
		if (bits < 0x7f800000 && bits > most)
			most = bits;
	}
	if (!most)
		return 0;
	/* In [2^(e-1), 2^e); subnormal numbers are below what a scale can reach. */
	int e = (int)(most >> 23) - 126;
	return -e > 126 ? 126 : -e < -126 ? -126 : -e;
}
