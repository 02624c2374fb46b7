// SPDX-License-Identifier: Apache-2.0
// A program of ps-lite: workers push integers to random keys and pull, until their standard input
// ends. A pull has at least what its worker's pushes that were answered before have added.
//
// `sums FOLDER`: at the end each worker writes worker-RANK, with a line for each key: what it has
// pushed, and what all have according to a pull; each server writes server-RANK, with its store.
// A server prints "server RANK" when it is ready, and a worker lines with the number of its pushes
// that were answered.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "ps/ps.h"

namespace {

using ps::Key;

constexpr Key kStep = ps::kMaxKey / 10000;
constexpr size_t kKeys = 10000;
constexpr size_t kInFlight = 8;

std::string folder;
std::atomic<bool> over{false}; // standard input has ended

std::string FileName(const char* role) { return folder + "/" + role + "-" + std::to_string(ps::MyRank()); }

[[noreturn]] void Fail(const char* what, Key key, double got, double least) {
  fprintf(stderr, "%s: key %llu has %.17g, and at least %.17g was acknowledged\n", what,
          static_cast<unsigned long long>(key), got, least);
  _exit(3);
}

// A server's handle.
struct Store {
  std::vector<double> sums = std::vector<double>(kKeys);

  void operator()(const ps::KVMeta& meta, const ps::KVPairs<float>& data, ps::KVServer<float>* server) {
    ps::KVPairs<float> answer;
    size_t n = data.keys.size();
    if (meta.pull) {
      answer.keys = data.keys;
      answer.vals.resize(n);
    }
    for (size_t i = 0; i < n; i++) {
      double& sum = sums.at(data.keys[i] / kStep);
      if (meta.push) sum += data.vals[i];
      if (meta.pull) answer.vals[i] = static_cast<float>(sum);
    }
    server->Response(meta, answer);
  }
};

// A worker.
class Worker {
 public:
  void Run() {
    std::thread([] { // until the process ends
      char c;
      while (read(0, &c, 1) > 0) {}
      over = true;
    }).detach();
    random_.seed(static_cast<unsigned>(ps::MyRank()));
    for (unsigned i = 0; !over; i++) {
      Draw();
      unsigned kind = Random(20);
      if (kind < 13)
        Push({});
      else if (kind < 14)
        Push(std::vector<int>(keys_.size(), 1)); // travels whole
      else
        Pull(kind < 15);
      if (i % 64 == 0) Say();
    }
    while (!in_flight_.empty()) WaitForFirst();
    ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
    keys_.clear();
    for (size_t i = 0; i < kKeys; i++) keys_.push_back(i);
    std::vector<float> all;
    kv_.Wait(kv_.Pull(Names(), &all));
    std::ofstream out(FileName("worker"));
    out.precision(17);
    for (size_t i = 0; i < kKeys; i++) out << answered_[i] << ' ' << all[i] << '\n';
  }

 private:
  unsigned Random(unsigned n) { return static_cast<unsigned>(random_() % n); }

  // Draw draws keys and values.
  void Draw() {
    keys_.clear();
    values_.clear();
    size_t n = 1 + Random(64);
    for (size_t key = Random(200); keys_.size() < n && key < kKeys; key += 1 + Random(300)) {
      keys_.push_back(key);
      values_.push_back(static_cast<float>(1 + Random(9)));
    }
  }

  std::vector<Key> Names() const {
    std::vector<Key> names;
    for (size_t key : keys_) names.push_back(key * kStep);
    return names;
  }

  // Add returns what notes that a push has been answered.
  ps::KVWorker<float>::Callback Add() {
    auto keys = keys_;
    auto values = values_;
    return [this, keys, values] {
      std::lock_guard<std::mutex> lock(mu_);
      for (size_t i = 0; i < keys.size(); i++) answered_[keys[i]] += values[i];
      pushes_++;
    };
  }

  void Push(const std::vector<int>& lens) {
    if (in_flight_.size() == kInFlight) WaitForFirst();
    in_flight_.push_back(kv_.Push(Names(), values_, lens, 0, Add()));
  }

  void WaitForFirst() {
    kv_.Wait(in_flight_.front());
    in_flight_.pop_front();
  }

  // Pull pulls, and pushes with the same request if wanted.
  void Pull(bool push) {
    std::vector<double> least;
    std::vector<float> got;
    {
      std::lock_guard<std::mutex> lock(mu_);
      for (size_t i = 0; i < keys_.size(); i++) least.push_back(answered_[keys_[i]] + (push ? values_[i] : 0));
    }
    if (push)
      kv_.Wait(kv_.PushPull(Names(), values_, &got, nullptr, 0, Add()));
    else
      kv_.Wait(kv_.Pull(Names(), &got));
    for (size_t i = 0; i < keys_.size(); i++)
      if (got[i] < static_cast<float>(least[i]))
        Fail(push ? "push and pull" : "pull", keys_[i] * kStep, got[i], least[i]);
  }

  void Say() {
    std::lock_guard<std::mutex> lock(mu_);
    printf("%llu\n", pushes_);
    fflush(stdout);
  }

  ps::KVWorker<float> kv_{0, 0};
  std::mt19937_64 random_;
  std::deque<int> in_flight_;
  std::vector<size_t> keys_;
  std::vector<float> values_;

  std::mutex mu_;
  std::vector<double> answered_ = std::vector<double>(kKeys);
  unsigned long long pushes_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: sums FOLDER\n");
    return 2;
  }
  folder = argv[1];
  ps::Start(0);
  if (ps::IsServer()) {
    auto store = std::make_shared<Store>(); // before there is a thread that uses it
    auto server = new ps::KVServer<float>(0);
    std::string file = FileName("server");
    server->set_request_handle([store](const ps::KVMeta& meta, const ps::KVPairs<float>& data,
                                       ps::KVServer<float>* s) { (*store)(meta, data, s); });
    ps::RegisterExitCallback([server, store, file] {
      delete server;
      std::ofstream out(file);
      out.precision(17);
      for (double sum : store->sums) out << sum << '\n';
    });
    printf("server %d\n", ps::MyRank());
    fflush(stdout);
  }
  if (ps::IsWorker()) {
    auto worker = new Worker;
    worker->Run();
    // Not before: the van's thread may still wake who waits for the last answer, which has come.
    ps::RegisterExitCallback([worker] { delete worker; });
  }
  ps::Finalize(0, true);
  return 0;
}
