//go:build ignore

// The baseline of 'libra bench push': pushes as key-value messages over ZeroMQ,
// the pattern of ps-lite (github.com/dmlc/ps-lite, src/zmq_van.h and
// include/ps/kv_app.h). A push is a message of three parts: what it is, sorted
// keys, values; data parts are sent without being copied, and summed where they
// were received. The answer is a message without data.
//
// Where ps-lite does more than this needs, it is left out, in the baseline's
// favour: the description is two words instead of a protobuf; requests and
// answers share a connection; the server sums in the thread that receives, where
// ps-lite hands every message through two queues.
//
//   kv_zmq server CPU PORT hash|table
//   kv_zmq worker CPU PORT NUMBER
//
// The workload is at descriptor 3, laid out as in bench/push/workload.go; a server stores its sums at
// descriptor 4.
// Requests on standard input and their answers are those of package bench/child;
// bench/push/child_linux.go lists them.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

constexpr size_t kPage = 4096;
constexpr int kInFlight = 16;
constexpr int kExponent = -46;  // one unit of a sum is 2^kExponent

[[noreturn]] void fail(const char* what) {
  fprintf(stderr, "kv_zmq: %s: %s\n", what, zmq_strerror(errno));
  exit(1);
}

void* map(int fd, size_t offset, size_t size, int prot) {
  void* mem = mmap(nullptr, size, prot, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(offset));
  if (mem == MAP_FAILED) fail("map shared memory");
  return mem;
}

// Header is the first page of the workload.
struct Header {
  struct Share {
    uint64_t offset, batches, rows;
  };
  uint64_t keys, dim, hot, shares;
  Share share[64];
};

const Header& header() {
  static auto* h = static_cast<const Header*>(map(3, 0, kPage, PROT_READ));
  return *h;
}

uint64_t nanos(const timeval& t) { return t.tv_sec * 1000000000ull + t.tv_usec * 1000ull; }

std::atomic<uint64_t> pushes{0};
std::atomic<bool> started{false}, stopped{false}, finished{false}, ended{false};

void raise(std::atomic<bool>& flag) {
  flag = true;
  flag.notify_all();
}

// answer answers a request with a mark.
void answer(const char* id) {
  timespec ts;
  rusage use;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  getrusage(RUSAGE_SELF, &use);
  printf("{\"id\":%lu,\"value\":{\"at_ns\":%llu,\"pushes\":%llu,\"user_ns\":%llu,\"kernel_ns\":%llu}}\n",
         strtoul(id, nullptr, 10), ts.tv_sec * 1000000000ull + ts.tv_nsec,
         static_cast<unsigned long long>(pushes.load()), static_cast<unsigned long long>(nanos(use.ru_utime)),
         static_cast<unsigned long long>(nanos(use.ru_stime)));
  fflush(stdout);
}

// follow answers requests until their end, {"id":1,"op":"mark"} on a line.
void follow() {
  static const char prefix[] = "{\"id\":";
  char line[128];
  while (fgets(line, sizeof line, stdin) != nullptr) {
    if (strncmp(line, prefix, strlen(prefix)) != 0) continue;
    if (strstr(line, "\"op\":\"start\"") != nullptr) {
      raise(started);
    } else if (strstr(line, "\"op\":\"stop\"") != nullptr) {
      stopped = true;
      raise(started);
      finished.wait(false);
    }
    answer(line + strlen(prefix));
  }
  stopped = true;
  raise(started);
  raise(ended);
}

void ready() {
  printf("{\"ready\":true}\n");
  fflush(stdout);
}

// Message is one part of a message.
struct Message {
  zmq_msg_t msg;
  Message() { zmq_msg_init(&msg); }
  ~Message() { zmq_msg_close(&msg); }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  size_t size() { return zmq_msg_size(&msg); }
  template <typename T>
  T* data() {
    return static_cast<T*>(zmq_msg_data(&msg));
  }
};

// Meta describes a message.
struct Meta {
  uint32_t push;
  uint32_t timestamp;  // of the request; its answer has the same
};

void send(void* socket, Message& m, int flags) {
  while (zmq_msg_send(&m.msg, socket, flags) < 0) {
    if (errno != EINTR) fail("send");
  }
}

// receive waits at most for the socket's timeout.
bool receive(void* socket, Message& m) {
  while (zmq_msg_recv(&m.msg, socket, 0) < 0) {
    if (errno == EAGAIN) return false;
    if (errno != EINTR) fail("receive");
  }
  return true;
}

void* open_socket(int type) {
  void* context = zmq_ctx_new();
  if (context == nullptr || zmq_ctx_set(context, ZMQ_IO_THREADS, 1) != 0) fail("context");
  void* socket = zmq_socket(context, type);
  int wait = 10;  // ms, so that a server notices the end
  if (socket == nullptr || zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait, sizeof wait) != 0) fail("socket");
  return socket;
}

// Rows is what the harness reads of a server: their number, and for each its key and its sums in
// units.
class Rows {
 public:
  void add(uint64_t key) { all_.push_back(static_cast<int64_t>(key)), n_++; }
  void add_sum(int64_t units) { all_.push_back(units); }
  void store(int64_t* to) {
    to[0] = n_;
    memcpy(to + 1, all_.data(), all_.size() * sizeof(int64_t));
  }

 private:
  int64_t n_ = 0;
  std::vector<int64_t> all_;
};

// HashHandle is ps-lite's KVServerDefaultHandle.
class HashHandle {
 public:
  HashHandle(const uint64_t* keys, const Header& h) {
    store_.reserve(h.keys);
    for (size_t i = 0; i < h.keys; i++) store_[keys[i]] = 0;
  }

  void push(const uint64_t* keys, const float* values, size_t n) {
    for (size_t i = 0; i < n; i++) store_[keys[i]] += values[i];
  }

  void rows(Rows& out) {
    for (const auto& [key, sum] : store_) {
      out.add(key);
      out.add_sum(static_cast<int64_t>(ldexp(sum, -kExponent)));
    }
  }

 private:
  std::unordered_map<uint64_t, float> store_;
};

// HashRows is HashHandle for rows of several floats, which ps-lite leaves to its users. They lie behind
// one another, which is faster than a vector for each.
class HashRows {
 public:
  HashRows(const uint64_t* keys, const Header& h) : dim_(h.dim), sums_(h.keys * h.dim) {
    store_.reserve(h.keys);
    for (size_t i = 0; i < h.keys; i++) store_[keys[i]] = i * dim_;
  }

  void push(const uint64_t* keys, const float* values, size_t n) {
    for (size_t i = 0; i < n; i++, values += dim_) {
      float* to = &sums_[store_[keys[i]]];
      for (size_t j = 0; j < dim_; j++) to[j] += values[j];
    }
  }

  void rows(Rows& out) {
    for (const auto& [key, at] : store_) {
      out.add(key);
      for (size_t j = 0; j < dim_; j++) out.add_sum(static_cast<int64_t>(ldexp(sums_[at + j], -kExponent)));
    }
  }

 private:
  size_t dim_;
  std::vector<float> sums_;
  std::unordered_map<uint64_t, size_t> store_;
};

// TableHandle is Store of ps/store.go, and table of ps/table.go:
// open addressing with linear probing over entries of 16 bytes, at most half of
// them used; rows in the order of their first update; sums in fixed point; and
// the same passes over a push, so that cache misses overlap.
class TableHandle {
 public:
  TableHandle(const uint64_t* keys, const Header& h) : entries_(std::bit_ceil(2 * h.keys)), dim_(h.dim) {
    shift_ = 64 - std::bit_width(entries_.size() - 1);
    std::vector<float> zeros(h.keys * dim_);
    push(keys, zeros.data(), h.keys);
  }

  void push(const uint64_t* keys, const float* values, size_t n) {
    units_.resize(n * dim_);
    places_.resize(n);
    for (size_t i = 0; i < n * dim_; i++) units_[i] = to_units(values[i]);
    for (size_t i = 0; i < n; i++) {
      const Entry& e = entries_[mix(keys[i]) >> shift_];
      places_[i] = e.key == keys[i] ? e.row : 0;
    }
    for (size_t i = 0; i < n; i++) {
      places_[i] = places_[i] != 0 ? places_[i] - 1 : place(keys[i]);
      __builtin_prefetch(&sums_[places_[i] * dim_]);
    }
    for (size_t i = 0; i < n; i++) {
      uint64_t at = places_[i];
      for (size_t j = 0; j < dim_; j++) {
        int64_t& sum = sums_[at * dim_ + j];
        if (__builtin_add_overflow(sum, units_[i * dim_ + j], &sum)) fail("overflow");
      }
      if ((marks_[at >> 6] >> (at & 63) & 1) == 0) {
        marks_[at >> 6] |= 1ull << (at & 63);
        touched_.push_back(at);
      }
    }
  }

  void rows(Rows& out) {
    for (uint64_t at : touched_) {
      out.add(keys_[at]);
      for (size_t j = 0; j < dim_; j++) out.add_sum(sums_[at * dim_ + j]);
    }
  }

 private:
  struct Entry {
    uint64_t key, row;  // the row's number plus one; 0: free
  };

  static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }

  // to_units is FromBits of internal/num/fixedpoint.
  static int64_t to_units(float value) {
    uint32_t bits = std::bit_cast<uint32_t>(value);
    int e = bits >> 23 & 0xff;
    if (e == 0xff) fail("not finite");
    if (e == 0) return 0;
    uint64_t t = static_cast<uint64_t>((bits & 0x7fffff) | 0x800000) << 40;
    int shift = 189 + kExponent - e;
    if (shift < 0) fail("out of range");
    if (shift > 63) return 0;
    int64_t n = static_cast<int64_t>(((t >> shift) + 1) >> 1);
    int64_t sign = -static_cast<int64_t>(bits >> 31);
    return (n ^ sign) - sign;
  }

  uint64_t place(uint64_t key) {
    uint64_t mask = entries_.size() - 1;
    for (uint64_t i = mix(key) >> shift_;; i++) {
      Entry& e = entries_[i & mask];
      if (e.row == 0) e = {key, insert(key)};
      if (e.key == key) return e.row - 1;
    }
  }

  // insert appends a row and returns its number plus one. All keys are known
  // from the beginning, so the table need not grow.
  uint64_t insert(uint64_t key) {
    keys_.push_back(key);
    sums_.resize(sums_.size() + dim_);
    if (marks_.size() * 64 < keys_.size()) marks_.push_back(0);
    return keys_.size();
  }

  std::vector<Entry> entries_;
  size_t dim_;
  int shift_;
  std::vector<uint64_t> keys_, touched_, marks_, places_;
  std::vector<int64_t> sums_, units_;
};

template <typename Handle>
void serve(const std::string& address) {
  const Header& h = header();
  auto* keys = static_cast<const uint64_t*>(map(3, kPage, 8 * h.keys, PROT_READ));
  auto* out = static_cast<int64_t*>(map(4, 0, 8 * (1 + h.keys * (1 + h.dim)), PROT_READ | PROT_WRITE));
  Handle handle(keys, h);
  void* socket = open_socket(ZMQ_ROUTER);
  if (zmq_bind(socket, address.c_str()) != 0) fail("bind");
  ready();
  while (!stopped) {
    Message sender, meta, keys, values;
    if (!receive(socket, sender)) continue;
    if (!receive(socket, meta) || !receive(socket, keys) || !receive(socket, values)) fail("truncated message");
    size_t n = keys.size() / sizeof(uint64_t);
    if (meta.size() != sizeof(Meta) || values.size() != n * h.dim * sizeof(float)) fail("malformed message");
    handle.push(keys.template data<uint64_t>(), values.template data<float>(), n);
    send(socket, sender, ZMQ_SNDMORE);
    send(socket, meta, 0);
  }
  Rows rows;
  handle.rows(rows);
  rows.store(out);
}

// keep is called when a part has been sent. The batches stay.
void keep(void*, void*) {}

void work(const std::string& address, uint32_t number) {
  const Header& h = header();
  const Header::Share& share = h.share[number % h.shares];
  size_t row = h.dim * sizeof(float);
  size_t size = 8 * (share.batches + 1) + (8 + row) * share.rows;
  auto* starts = static_cast<const uint64_t*>(map(3, share.offset, size, PROT_READ));
  auto* keys = reinterpret_cast<char*>(const_cast<uint64_t*>(starts + share.batches + 1));
  char* values = keys + share.rows * sizeof(uint64_t);
  void* socket = open_socket(ZMQ_DEALER);
  std::string name = "ps" + std::to_string(number);
  if (zmq_setsockopt(socket, ZMQ_IDENTITY, name.data(), name.size()) != 0) fail("name");
  if (zmq_connect(socket, address.c_str()) != 0) fail("connect");
  ready();
  started.wait(false);
  for (uint32_t sent = 0; !stopped || pushes < sent;) {
    if (!stopped && sent - pushes < kInFlight) {
      Message meta, k, v;
      zmq_msg_init_size(&meta.msg, sizeof(Meta));
      *meta.data<Meta>() = {1, sent};
      uint64_t at = starts[sent % share.batches], n = starts[sent % share.batches + 1] - at;
      zmq_msg_init_data(&k.msg, keys + at * sizeof(uint64_t), n * sizeof(uint64_t), keep, nullptr);
      zmq_msg_init_data(&v.msg, values + at * row, n * row, keep, nullptr);
      send(socket, meta, ZMQ_SNDMORE);
      send(socket, k, ZMQ_SNDMORE);
      send(socket, v, 0);
      sent++;
      continue;
    }
    Message reply;
    if (!receive(socket, reply)) continue;
    if (reply.size() != sizeof(Meta) || reply.data<Meta>()->timestamp != static_cast<uint32_t>(pushes)) fail("wrong answer");
    pushes++;
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() < 4) {
    fprintf(stderr, "kv_zmq: to be called by 'libra bench push'\n");
    return 2;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(std::stoi(args[1]), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("pin");
  std::thread(follow).detach();
  std::string address = "tcp://127.0.0.1:" + args[2];
  if (args[0] == "server") {
    if (args[3] == "table") {
      serve<TableHandle>(address);
    } else {
      header().dim == 1 ? serve<HashHandle>(address) : serve<HashRows>(address);
    }
  } else {
    work(address, static_cast<uint32_t>(std::stoul(args[3])));
  }
  raise(finished);
  ended.wait(false);
  _exit(0);
}
