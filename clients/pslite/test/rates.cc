// SPDX-License-Identifier: Apache-2.0
// The program that 'libra bench pslite' measures, with ps-lite's default handle on the servers.
//
// `rates small PUSHES`: a worker pushes 8 pairs, of which 4 are hot, and waits, again and again. It
// prints "median_us X".
//
// `rates batches PUSHES WORKERS`: so many workers push batches of 4,096 pairs each. Keys follow
// Zipf's distribution with exponent 1.1 over 2^20 numbers, and are distinct in a batch; 16 pushes
// of a worker are in flight. The first worker prints "pairs_per_s X". If there is one worker
// more, it pulls the 8 hottest keys meanwhile, and prints "pull_median_ms X". Then the sum of the
// store is checked.
//
// The key of a number is that of bench/pslite; the hottest is number 0.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <unordered_set>
#include <vector>

#include "ps/ps.h"

namespace {

using Clock = std::chrono::steady_clock;
using ps::Key;
using ps::SArray;

constexpr size_t kNumbers = 1 << 20;
constexpr size_t kPairs = 4096;
constexpr int kDistinct = 128; // batches of a worker, which it pushes in turn
constexpr int kWarm = 32;
constexpr size_t kInFlight = 16;
constexpr int kAtOnce = 1 << 16; // keys of a push or pull of all

Key KeyOf(size_t number) { return number * UINT64_C(0x9e3779b97f4a7c15); }

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

double Median(std::vector<double> all) {
  auto middle = all.begin() + static_cast<ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

struct Batch {
  SArray<Key> keys;
  SArray<float> values;
};

Batch MakeBatch(std::vector<Key> keys) {
  std::sort(keys.begin(), keys.end());
  Batch b;
  b.keys.CopyFrom(keys.data(), keys.size());
  b.values.resize(keys.size(), 1);
  return b;
}

std::vector<Batch> Draw(int rank) {
  std::vector<double> below(kNumbers);
  double all = 0;
  for (size_t i = 0; i < kNumbers; i++) below[i] = all += std::pow(i + 1, -1.1);
  std::mt19937_64 random(static_cast<unsigned>(rank));
  std::uniform_real_distribution<double> share(0, all);
  std::vector<Batch> batches;
  for (int i = 0; i < kDistinct; i++) {
    std::unordered_set<size_t> numbers;
    while (numbers.size() < kPairs) {
      auto at = std::lower_bound(below.begin(), below.end(), share(random)) - below.begin();
      numbers.insert(std::min(static_cast<size_t>(at), kNumbers - 1));
    }
    std::vector<Key> keys;
    for (size_t number : numbers) keys.push_back(KeyOf(number));
    batches.push_back(MakeBatch(std::move(keys)));
  }
  return batches;
}

void Barrier() { ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup); }

using Worker = ps::KVWorker<float>;

void PushAll(Worker* kv, const std::vector<Batch>& batches, int pushes) {
  std::deque<int> in_flight;
  for (int i = 0; i < pushes; i++) {
    const auto& b = batches[static_cast<size_t>(i) % batches.size()];
    if (in_flight.size() == kInFlight) {
      kv->Wait(in_flight.front());
      in_flight.pop_front();
    }
    in_flight.push_back(kv->ZPush(b.keys, b.values));
  }
  for (int t : in_flight) kv->Wait(t);
}

// Each returns batches with all keys.
std::vector<Batch> Each() {
  std::vector<Key> all;
  for (size_t i = 0; i < kNumbers; i++) all.push_back(KeyOf(i));
  std::sort(all.begin(), all.end());
  std::vector<Batch> batches;
  for (auto at = all.begin(); at < all.end(); at += kAtOnce)
    batches.push_back(MakeBatch(std::vector<Key>(at, at + kAtOnce)));
  return batches;
}

void CheckStore(Worker* kv, double want) {
  double sum = 0;
  for (const auto& b : Each()) {
    SArray<float> got;
    kv->Wait(kv->ZPull(b.keys, &got));
    for (float v : got) sum += v;
  }
  if (sum != want) {
    fprintf(stderr, "the store adds up to %.17g, want %.17g\n", sum, want);
    exit(3);
  }
}

void Batches(int pushes, int workers) {
  Worker kv(0, 0);
  auto batches = Draw(ps::MyRank());
  Barrier();
  if (ps::MyRank() == 0) { // the store has all keys
    auto all = Each();
    PushAll(&kv, all, static_cast<int>(all.size()));
  }
  Barrier();
  PushAll(&kv, batches, kWarm);
  Barrier();
  auto begin = Clock::now();
  PushAll(&kv, batches, pushes);
  Barrier();
  double took = Seconds(Clock::now() - begin);
  if (ps::MyRank() == 0) {
    double pairs = double(kPairs) * pushes * workers;
    printf("pairs_per_s %.17g\n", pairs / took);
    CheckStore(&kv, kNumbers + pairs + double(kPairs) * kWarm * workers);
  }
}

void Pulls() {
  Worker kv(0, 0);
  for (int i = 0; i < 3; i++) Barrier();
  std::atomic<bool> over{false};
  std::thread others([&over] {
    Barrier();
    over = true;
  });
  std::vector<Key> keys;
  for (size_t i = 0; i < 8; i++) keys.push_back(KeyOf(i));
  std::sort(keys.begin(), keys.end());
  std::vector<double> times;
  std::vector<float> got;
  do {
    auto begin = Clock::now();
    kv.Wait(kv.Pull(keys, &got));
    times.push_back(Seconds(Clock::now() - begin) * 1e3);
  } while (!over);
  others.join();
  printf("pull_median_ms %.17g\n", Median(times));
}

void Small(int pushes) {
  Worker kv(0, 0);
  std::vector<Key> keys;
  for (size_t i = 0; i < 8; i++) keys.push_back(KeyOf(i < 4 ? i : kNumbers - i));
  auto b = MakeBatch(keys);
  std::vector<double> times;
  for (int i = 0; i < pushes; i++) {
    auto begin = Clock::now();
    kv.Wait(kv.ZPush(b.keys, b.values));
    times.push_back(Seconds(Clock::now() - begin) * 1e6);
  }
  printf("median_us %.17g\n", Median(times));
}

}  // namespace

int main(int argc, char** argv) {
  bool small = argc == 3 && strcmp(argv[1], "small") == 0;
  if (!small && (argc != 4 || strcmp(argv[1], "batches") != 0)) {
    fprintf(stderr, "usage: rates small PUSHES | rates batches PUSHES WORKERS\n");
    return 2;
  }
  ps::Start(0);
  if (ps::IsServer()) {
    auto server = new ps::KVServer<float>(0);
    server->set_request_handle(ps::KVServerDefaultHandle<float>());
    ps::RegisterExitCallback([server] { delete server; });
  }
  if (ps::IsWorker()) {
    if (small)
      Small(atoi(argv[2]));
    else if (ps::MyRank() < atoi(argv[3]))
      Batches(atoi(argv[2]), atoi(argv[3]));
    else
      Pulls();
    fflush(stdout);
  }
  ps::Finalize(0, true);
  return 0;
}
