//go:build ignore

// A baseline of 'libra bench latency': requests over ZeroMQ connections, and what each costs the server.
//
//   connections_zmq CONNECTIONS REQUESTS BYTES
//
// The server is a process of its own, with one ROUTER socket on the loopback interface, which answers
// each request with an empty message. The client has a DEALER socket for each connection, and sends in
// turn on all of them, 64 requests at a time. The line {"cpu_ns":...} on standard output is the server's
// CPU time for all requests, its I/O thread included.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kInFlight = 64;

[[noreturn]] void fail(const char* what) {
  fprintf(stderr, "connections_zmq: %s: %s\n", what, zmq_strerror(zmq_errno()));
  exit(1);
}

long long cpu() {
  rusage r;
  if (getrusage(RUSAGE_SELF, &r) != 0) fail("getrusage");
  const auto ns = [](const timeval& t) { return t.tv_sec * 1000000000LL + t.tv_usec * 1000LL; };
  return ns(r.ru_utime) + ns(r.ru_stime);
}

void* context() {
  void* ctx = zmq_ctx_new();
  if (ctx == nullptr || zmq_ctx_set(ctx, ZMQ_MAX_SOCKETS, 4096) != 0) fail("context");
  return ctx;
}

// serve answers the first requests, which open the connections, and measures the others.
void serve(int announce, long first, long requests) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  void* s = zmq_socket(context(), ZMQ_ROUTER);
  if (s == nullptr || zmq_bind(s, "tcp://127.0.0.1:*") != 0) fail("bind");
  char at[64] = {};
  size_t n = sizeof at;
  if (zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, at, &n) != 0) fail("endpoint");
  if (write(announce, at, sizeof at) != sizeof at) fail("announce");
  long long begun = 0;
  char identity[256], body[4096];
  for (long i = 0; i < first + requests; i++) {
    if (i == first) begun = cpu();
    const int len = zmq_recv(s, identity, sizeof identity, 0);
    if (len < 0 || zmq_recv(s, body, sizeof body, 0) < 0) fail("receive");
    if (zmq_send(s, identity, len, ZMQ_SNDMORE) < 0 || zmq_send(s, "", 0, 0) < 0) fail("answer");
  }
  printf("{\"cpu_ns\":%lld}\n", cpu() - begun);
  fflush(stdout);
  char end;
  if (read(STDIN_FILENO, &end, 1) < 0) fail("end");  // answers are still on their way
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const long connections = atol(argv[1]), requests = atol(argv[2]), bytes = atol(argv[3]);
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  int announce[2], end[2];
  if (pipe(announce) != 0 || pipe(end) != 0) fail("pipe");
  const pid_t server = fork();
  if (server < 0) fail("fork");
  if (server == 0) {
    close(end[1]);
    dup2(end[0], STDIN_FILENO);
    serve(announce[1], connections, requests);
    _exit(0);
  }
  close(announce[1]);
  char at[64];
  if (read(announce[0], at, sizeof at) != sizeof at) fail("no server");
  void* ctx = context();
  std::vector<void*> all(connections);
  std::vector<char> body(bytes);
  const auto send = [&](void* s) { if (zmq_send(s, body.data(), body.size(), 0) < 0) fail("send"); };
  const auto receive = [](void* s) { char c; if (zmq_recv(s, &c, 1, 0) < 0) fail("receive"); };
  for (void*& s : all) {
    s = zmq_socket(ctx, ZMQ_DEALER);
    if (s == nullptr || zmq_connect(s, at) != 0) fail("connect");
    send(s);
    receive(s);
  }
  for (long done = 0; done < requests; done += kInFlight) {
    const long n = requests - done < kInFlight ? requests - done : kInFlight;
    for (long i = 0; i < n; i++) send(all[(done + i) % connections]);
    for (long i = 0; i < n; i++) receive(all[(done + i) % connections]);
  }
  close(end[1]);
  int status = 0;
  if (waitpid(server, &status, 0) < 0 || status != 0) fail("the server has failed");
  _exit(0);
}
