//go:build ignore
// SPDX-License-Identifier: Apache-2.0
/* All-reduces of small vectors, one at a time, by Gloo over TCP on the loopback interface, each rank a thread
 * with connections of its own: prints how long they take at rank 0. */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>

static void reduce(gloo::rendezvous::Store &store, int rank, int ranks, int width, int warm, int n)
{
	gloo::transport::tcp::attr at;
	at.iface = "lo";
	auto device = gloo::transport::tcp::CreateDevice(at);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
	context->connectFullMesh(store, device);

	std::vector<float> values(width), sums(width);
	std::vector<long> took(n);
	for (int i = -warm; i < n; i++) {
		const int k = (i + warm) % 1000;
		std::fill(values.begin(), values.end(), float(k + rank));
		const auto begin = std::chrono::steady_clock::now();
		gloo::AllreduceOptions options(context);
		options.setInput(values.data(), values.size());
		options.setOutput(sums.data(), sums.size());
		options.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(gloo::sum<float>));
		gloo::allreduce(options);
		if (i >= 0)
			took[i] = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
		for (float sum : sums)
			if (sum != float(ranks * k + ranks * (ranks - 1) / 2)) {
				fprintf(stderr, "error: operation %d: a sum is %g\n", i, sum);
				_Exit(1);
			}
	}
	if (rank == 0) {
		double mean = 0;
		for (long t : took)
			mean += double(t) / n;
		std::sort(took.begin(), took.end());
		printf("{\"p1_ns\":%ld,\"p50_ns\":%ld,\"p99_ns\":%ld,\"mean_ns\":%.0f}\n", took[(n + 99) / 100 - 1],
		       took[(n + 1) / 2 - 1], took[(n * 99L + 99) / 100 - 1], mean);
	}
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	const int ranks = atoi(argv[1]);
	gloo::rendezvous::HashStore store;
	std::vector<std::thread> threads;
	for (int rank = 0; rank < ranks; rank++)
		threads.emplace_back([&, rank] { reduce(store, rank, ranks, atoi(argv[2]), atoi(argv[3]), atoi(argv[4])); });
	for (auto &t : threads)
		t.join();
	return 0;
}
