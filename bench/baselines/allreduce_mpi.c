//go:build ignore
// SPDX-License-Identifier: Apache-2.0
/* All-reduces of small vectors, one at a time, by MPI: prints how long they take at rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int rank, ranks, width, warm, n, wrong = 0;
	float *values, *sums;
	double mean = 0;
	long *took;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc != 4)
		return 2;
	width = atoi(argv[1]);
	warm = atoi(argv[2]);
	n = atoi(argv[3]);
	values = calloc(width, sizeof(*values));
	sums = calloc(width, sizeof(*sums));
	took = calloc(n, sizeof(*took));
	for (int i = -warm; i < n; i++) {
		float want = ranks * (float)((i + warm) % 1000) + ranks * (ranks - 1) / 2;
		long begin;

		for (int k = 0; k < width; k++)
			values[k] = (i + warm) % 1000 + rank;
		begin = now();
		MPI_Allreduce(values, sums, width, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
		if (i >= 0)
			took[i] = now() - begin;
		wrong += sums[0] != want || sums[width - 1] != want;
	}
	if (wrong) {
		fprintf(stderr, "error: %d wrong sums\n", wrong);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	if (rank == 0) {
		for (int i = 0; i < n; i++)
			mean += (double)took[i] / n;
		qsort(took, n, sizeof(*took), ascending);
		printf("{\"p1_ns\":%ld,\"p50_ns\":%ld,\"p99_ns\":%ld,\"mean_ns\":%.0f}\n", took[(n + 99) / 100 - 1],
		       took[(n + 1) / 2 - 1], took[(n * 99 + 99) / 100 - 1], mean);
	}
	MPI_Finalize();
	return 0;
}
