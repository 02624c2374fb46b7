//go:build ignore
// SPDX-License-Identifier: Apache-2.0

/* The C program of 'libra bench engine': AF_XDP through libxdp, written after
 * xdpsock (xdp-project/bpf-examples), with what makes it fast in copy mode too:
 * need-wakeup, batches of 64, and a budget for each send call of a whole ring.
 *
 * xdp INTERFACE TEST CPU, with the memory that it shares with its parent
 * as descriptor 3. It needs a Linux with XDP multi-buffer for jumbo frames. */

#define _GNU_SOURCE
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <linux/if_link.h>
#include <xdp/xsk.h>

/* Newer than the headers of Debian 12. */
#ifndef XDP_USE_SG
#define XDP_USE_SG (1 << 4)
#endif
#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0)
#endif
#ifndef XDP_MAX_TX_SKB_BUDGET
#define XDP_MAX_TX_SKB_BUDGET 9
#endif

#define BATCH 64
#define WINDOW 256
#define FRAMES 4096
#define RING 2048
#define TO_SEND (FRAMES - RING) /* chunks; the others are to be filled */
#define HEADROOM 256 /* XDP_PACKET_HEADROOM: where received packets begin */
#define MAX_PLAIN 1514
#define SPIN_NS 100000
#define IDLE_MS 10
#define REBIND_MS 3000
#define RESEED 10 /* waits without a frame after which an echo's frames are lost */
#define CONTROL_FD 3

enum phase { WARM_UP, MEASURE, STOP };

struct usage {
	uint64_t user, kernel; /* ns */
};

/* The layout of type control in bench/engine/program_linux.go. */
struct control {
	_Atomic uint32_t phase;
	uint32_t frame_len;
	uint8_t pad0[56];

	_Atomic uint64_t received, samples;
	uint8_t pad1[48];
	struct usage at[2];
	uint8_t pad2[32];

	uint8_t frame[9216];
	uint32_t round_trip[1 << 20];
};

/* A test of package engine compares these numbers with Go's. */
_Static_assert(offsetof(struct control, phase) == 0, "layout");
_Static_assert(offsetof(struct control, frame_len) == 4, "layout");
_Static_assert(offsetof(struct control, received) == 64, "layout");
_Static_assert(offsetof(struct control, samples) == 72, "layout");
_Static_assert(offsetof(struct control, at) == 128, "layout");
_Static_assert(offsetof(struct control, frame) == 192, "layout");
_Static_assert(offsetof(struct control, round_trip) == 9408, "layout");

static struct control *ctl;
static struct xsk_ring_prod fill, tx;
static struct xsk_ring_cons completion, rx;
static struct xsk_umem *umem;
static struct xsk_socket *xsk;
static uint8_t *area;
static uint32_t chunk = 2048;
static bool jumbo;

/* The fragments of the frame; one unless it is a jumbo frame. */
static uint32_t part_len[8], parts;
static uint32_t next_chunk; /* to send: chunks are sent in turn */
static uint32_t outstanding;
static uint64_t driver_refused;

/* Ends the program if ret is a negative error number. */
static int check(const char *what, int ret)
{
	if (ret >= 0)
		return ret;
	fprintf(stderr, "xdp: %s: %s\n", what, strerror(-ret));
	exit(1);
}

static void *map(const char *what, size_t size, int flags, int fd)
{
	void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, 0);

	check(what, mem == MAP_FAILED ? -errno : 0);
	return mem;
}

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

/* Puts bpf_redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS) on the interface.
 * It is libxdp's default program without the dispatcher around it, which would
 * cost time and not let jumbo frames through. The link goes with the process. */
static void attach(int ifindex)
{
	int sockets = check("create XSKMAP", bpf_map_create(BPF_MAP_TYPE_XSKMAP, "xsks", 4, 4, 1, NULL));
	struct bpf_insn program[] = {
		{ .code = BPF_LDX | BPF_W | BPF_MEM, .dst_reg = BPF_REG_2, .src_reg = BPF_REG_1,
		  .off = offsetof(struct xdp_md, rx_queue_index) },
		{ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = BPF_REG_1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = sockets },
		{ 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_3, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	LIBBPF_OPTS(bpf_prog_load_opts, load, .prog_flags = jumbo ? BPF_F_XDP_HAS_FRAGS : 0);
	LIBBPF_OPTS(bpf_link_create_opts, link, .flags = XDP_FLAGS_DRV_MODE);
	int prog = check("load XDP program", bpf_prog_load(BPF_PROG_TYPE_XDP, "redirect", "GPL", program,
							   sizeof(program) / sizeof(program[0]), &load));

	check("attach XDP program", bpf_link_create(prog, ifindex, BPF_XDP, &link));
	check("store the socket in the XSKMAP", xsk_socket__update_xskmap(xsk, sockets));
}

/* The kernel takes a while to release a queue that the program before held. */
static void open_socket(const char *ifname)
{
	struct xsk_umem_config ucfg = {
		.fill_size = RING, .comp_size = RING, .frame_size = chunk,
	};
	struct xsk_socket_config cfg = {
		.rx_size = RING, .tx_size = RING, .libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD,
		.bind_flags = XDP_USE_NEED_WAKEUP | (jumbo ? XDP_USE_SG : 0),
	};
	uint64_t deadline = now() + REBIND_MS * 1000000ull;
	size_t size = (size_t)FRAMES * chunk;
	int err, budget = RING, room = RING * (chunk + 1024) / 2;

	area = map("mmap", size, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	for (;;) {
		check("create UMEM", xsk_umem__create(&umem, area, size, &fill, &completion, &ucfg));
		err = xsk_socket__create(&xsk, ifname, 0, umem, &rx, &tx, &cfg);
		if (err != -EBUSY || now() > deadline)
			break;
		xsk_umem__delete(umem);
		usleep(10000);
	}
	check("create socket", err);
	/* The kernel stops when the packets on their way exceed the socket's send
	 * buffer, which by default holds a few hundred. It doubles the value. */
	err = setsockopt(xsk_socket__fd(xsk), SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
	check("SO_SNDBUFFORCE", err ? -errno : 0);
	/* An older kernel keeps its 32 packets a call. */
	setsockopt(xsk_socket__fd(xsk), SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof(budget));
}

/* Writes the beginning of the frame into every chunk: of the later fragments
 * of a jumbo frame only the length matters. */
static void prepare(void)
{
	uint32_t room = chunk - HEADROOM;

	for (uint32_t left = ctl->frame_len; left > 0; parts++) {
		part_len[parts] = left < room ? left : room;
		left -= part_len[parts];
	}
	for (uint32_t i = 0; i < FRAMES; i++)
		memcpy(area + (size_t)i * chunk + HEADROOM, ctl->frame, part_len[0]);
}

static void stock_fill_ring(void)
{
	uint32_t idx;

	check("stock the fill ring", xsk_ring_prod__reserve(&fill, RING, &idx) == RING ? 0 : -ENOBUFS);
	for (uint32_t i = 0; i < RING; i++)
		*xsk_ring_prod__fill_addr(&fill, idx + i) = (uint64_t)(TO_SEND + i) * chunk;
	xsk_ring_prod__submit(&fill, RING);
}

static void kick(void)
{
	if (!xsk_ring_prod__needs_wakeup(&tx))
		return;
	if (sendto(xsk_socket__fd(xsk), NULL, 0, MSG_DONTWAIT, NULL, 0) >= 0)
		return;
	if (errno == EBUSY)
		driver_refused++;
	else if (errno != EAGAIN && errno != ENOBUFS && errno != EINTR)
		check("sendto", -errno);
}

/* Wakes the kernel and takes completed chunks out of the ring. Those that the
 * program sends in turn become free on completion. Those that were received and sent
 * back are lent to the kernel to be filled again. */
static void complete(void)
{
	uint32_t from, to, n, received = 0;

	kick();
	/* All of them: a smaller limit would let them pile up, since peek looks for
	 * new ones only when it has returned all that it knew of. */
	n = xsk_ring_cons__peek(&completion, RING, &from);
	if (n == 0)
		return;
	for (uint32_t i = 0; i < n; i++)
		received += *xsk_ring_cons__comp_addr(&completion, from + i) >= TO_SEND * (uint64_t)chunk;
	outstanding -= n - received;
	if (received > 0) {
		while (xsk_ring_prod__reserve(&fill, received, &to) == 0)
			; /* all such chunks fit the ring */
		for (uint32_t i = 0; i < n; i++) {
			uint64_t addr = *xsk_ring_cons__comp_addr(&completion, from + i);

			if (addr >= TO_SEND * (uint64_t)chunk)
				*xsk_ring_prod__fill_addr(&fill, to++) = addr;
		}
		xsk_ring_prod__submit(&fill, received);
	}
	xsk_ring_cons__release(&completion, n);
}

/* Sends up to n frames; returns how many the TX ring had room for. */
static uint32_t transmit(uint32_t n)
{
	uint32_t idx;

	if (outstanding + n * parts > TO_SEND || xsk_ring_prod__reserve(&tx, n * parts, &idx) == 0) {
		complete();
		return 0;
	}
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < parts; j++) {
			struct xdp_desc *d = xsk_ring_prod__tx_desc(&tx, idx++);

			d->addr = (uint64_t)next_chunk * chunk + HEADROOM;
			d->len = part_len[j];
			d->options = j + 1 < parts ? XDP_PKT_CONTD : 0;
			next_chunk = (next_chunk + 1) % TO_SEND;
		}
	}
	xsk_ring_prod__submit(&tx, n * parts);
	outstanding += n * parts;
	complete();
	return n;
}

/* Looks at the RX ring for a while, then sleeps. The kernel may have left
 * packets in the TX ring, because its buffers were full. */
static uint32_t await(uint32_t *idx)
{
	struct pollfd fd = { .fd = xsk_socket__fd(xsk), .events = POLLIN };
	uint32_t n = xsk_ring_cons__peek(&rx, BATCH * parts, idx);
	uint64_t deadline;
	bool backlog;

	if (n > 0)
		return n;
	if (xsk_ring_prod__needs_wakeup(&fill))
		recvfrom(xsk_socket__fd(xsk), NULL, 0, MSG_DONTWAIT, NULL, NULL);
	deadline = now() + SPIN_NS;
	do {
		for (int i = 0; i < 16; i++) {
			n = xsk_ring_cons__peek(&rx, BATCH * parts, idx);
			if (n > 0)
				return n;
		}
		backlog = __atomic_load_n(tx.consumer, __ATOMIC_ACQUIRE) != *tx.producer;
		if (backlog)
			complete();
	} while (now() < deadline);
	poll(&fd, 1, backlog ? 0 : IDLE_MS);
	return xsk_ring_cons__peek(&rx, BATCH * parts, idx);
}

/* Returns how many frames came, and gives their chunks back to be filled. */
static uint32_t receive(void)
{
	uint32_t idx, to, frames = 0, n = await(&idx);

	if (n == 0)
		return 0;
	while (xsk_ring_prod__reserve(&fill, n, &to) == 0)
		; /* what was received left room */
	for (uint32_t i = 0; i < n; i++) {
		const struct xdp_desc *d = xsk_ring_cons__rx_desc(&rx, idx + i);

		*xsk_ring_prod__fill_addr(&fill, to + i) = d->addr;
		frames += !(d->options & XDP_PKT_CONTD);
	}
	xsk_ring_prod__submit(&fill, n);
	xsk_ring_cons__release(&rx, n);
	return frames;
}

static void turn_round(uint8_t *frame)
{
	uint8_t mac[6];

	memcpy(mac, frame, 6);
	memcpy(frame, frame + 6, 6);
	memcpy(frame + 6, mac, 6);
}

static uint32_t bounce(void)
{
	static bool start = true; /* of a frame; it may be cut by a batch */
	uint32_t idx, to, frames = 0, n = await(&idx);

	if (n == 0)
		return 0;
	while (xsk_ring_prod__reserve(&tx, n, &to) == 0)
		complete();
	for (uint32_t i = 0; i < n; i++) {
		const struct xdp_desc *d = xsk_ring_cons__rx_desc(&rx, idx + i);

		if (start)
			turn_round(xsk_umem__get_data(area, d->addr));
		start = !(d->options & XDP_PKT_CONTD);
		frames += start;
		*xsk_ring_prod__tx_desc(&tx, to + i) = *d;
	}
	xsk_ring_prod__submit(&tx, n);
	xsk_ring_cons__release(&rx, n);
	complete();
	return frames;
}

/* What the tests repeat; each returns how many frames it received, as receive() does. */
static uint32_t step_transmit(void)
{
	transmit(BATCH);
	return 0;
}

static uint32_t step_echo(void)
{
	static int silent = RESEED;
	uint32_t n;

	if (silent == RESEED) {
		silent = 0;
		for (n = WINDOW; n > 0;)
			n -= transmit(n < BATCH ? n : BATCH);
	}
	n = bounce();
	silent = n == 0 ? silent + 1 : 0;
	return n;
}

static uint32_t step_request(void)
{
	uint64_t start = now();

	if (transmit(1) == 0 || receive() == 0)
		return 0;
	if (ctl->phase == MEASURE && ctl->samples < sizeof(ctl->round_trip) / sizeof(ctl->round_trip[0]))
		ctl->round_trip[ctl->samples++] = now() - start;
	return 1;
}

static struct usage own_usage(void)
{
	struct rusage r;

	getrusage(RUSAGE_SELF, &r);
	return (struct usage){ r.ru_utime.tv_sec * 1000000000ull + r.ru_utime.tv_usec * 1000ull,
			       r.ru_stime.tv_sec * 1000000000ull + r.ru_stime.tv_usec * 1000ull };
}

static struct xdp_statistics statistics(void)
{
	struct xdp_statistics st;
	socklen_t len = sizeof(st);

	check("XDP_STATISTICS", getsockopt(xsk_socket__fd(xsk), SOL_XDP, XDP_STATISTICS, &st, &len) ? -errno : 0);
	return st;
}

static void run(uint32_t (*step)(void))
{
	struct xdp_statistics before = { 0 }, after;
	uint32_t n, phase = WARM_UP;

	for (;;) {
		uint32_t current = atomic_load_explicit(&ctl->phase, memory_order_relaxed);

		if (current == STOP)
			break;
		if (current != phase) {
			phase = current;
			ctl->at[0] = own_usage();
			before = statistics();
			driver_refused = 0;
		}
		n = step();
		if (n > 0)
			ctl->received += n;
	}
	ctl->at[1] = own_usage();
	after = statistics();
	printf("{\"drops\":{\"socket: driver refused\":%llu,\"socket: bad descriptor\":%llu,"
	       "\"socket: RX dropped\":%llu,\"socket: RX ring full\":%llu,\"socket: fill ring empty\":%llu}}\n",
	       (unsigned long long)driver_refused,
	       (unsigned long long)(after.rx_invalid_descs + after.tx_invalid_descs -
				    before.rx_invalid_descs - before.tx_invalid_descs),
	       (unsigned long long)(after.rx_dropped - before.rx_dropped),
	       (unsigned long long)(after.rx_ring_full - before.rx_ring_full),
	       (unsigned long long)(after.rx_fill_ring_empty_descs - before.rx_fill_ring_empty_descs));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		uint32_t (*step)(void);
	} tests[] = {
		{ "transmit", step_transmit },
		{ "receive", receive },
		{ "echo", step_echo },
		{ "request-response", step_request },
	};
	uint32_t (*step)(void) = NULL;
	cpu_set_t cpus;

	for (size_t i = 0; argc == 4 && i < sizeof(tests) / sizeof(tests[0]); i++)
		if (strcmp(argv[2], tests[i].name) == 0)
			step = tests[i].step;
	if (!step) {
		fprintf(stderr, "usage: xdp INTERFACE transmit|receive|echo|request-response CPU\n");
		return 2;
	}
	CPU_ZERO(&cpus);
	CPU_SET(atoi(argv[3]), &cpus);
	check("pin to a CPU", sched_setaffinity(0, sizeof(cpus), &cpus) ? -errno : 0);
	ctl = map("map the memory shared with the parent", sizeof(*ctl), MAP_SHARED, CONTROL_FD);
	jumbo = ctl->frame_len > MAX_PLAIN;
	if (jumbo)
		chunk = 4096;
	open_socket(argv[1]);
	prepare();
	if (step != step_transmit) {
		stock_fill_ring();
		attach(if_nametoindex(argv[1]));
	}
	puts("{\"ready\":true}");
	fflush(stdout);
	run(step);
	return 0;
}
