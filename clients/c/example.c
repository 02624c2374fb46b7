/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fits y = w1 * x1 + w2 * x2 to points of a line, with both weights at the parameter server.
 *
 *	cc -o example example.c $(pkg-config --cflags --libs libra)
 *	./example JOB
 *
 * The job has rows of one float, mode combine, and an optimiser such as SGD with rate 0.1.
 */
#include <stdio.h>

#include <libra.h>

static int failed(const char *what)
{
	fprintf(stderr, "example: %s: %s\n", what, libra_last_error()->text);
	return 1;
}

int main(int argc, char **argv)
{
	const uint64_t keys[2] = {1, 2};
	const float points[][3] = {{1, 0, 3}, {0, 1, -2}, {1, 1, 1}, {2, 1, 4}}; /* x1, x2, y of w = 3, -2 */
	struct libra_options options = LIBRA_OPTIONS;
	struct libra_session *session;
	float w[2];

	if (argc != 2) {
		fprintf(stderr, "usage: example JOB\n");
		return 2;
	}
	options.job = argv[1];
	options.client = "example";
	options.dim = 1;
	options.parties = 1;
	if (libra_open(&session, &options))
		return failed("open");

	for (int step = 0; step < 200; step++) {
		if (libra_pull(session, keys, w, 2, NULL))
			return failed("pull");
		for (int i = 0; i < 4; i++) {
			const float *p = points[i];
			float error = p[0] * w[0] + p[1] * w[1] - p[2];
			float gradients[2] = {error * p[0], error * p[1]};
			if (libra_push(session, keys, gradients, 2, NULL))
				return failed("push");
		}
		if (libra_barrier(session, NULL)) /* ends a step: the server updates the weights */
			return failed("barrier");
	}
	if (libra_pull(session, keys, w, 2, NULL))
		return failed("pull");
	printf("w = %.3f %.3f\n", (double)w[0], (double)w[1]);
	return libra_close(session) ? failed("close") : 0;
}
