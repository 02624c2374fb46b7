// SPDX-License-Identifier: Apache-2.0

// How much the program holds. Each architecture's top may set its own sizes
// before it includes this file.

// Rows of slots in a bank: slot s of a job lives in row base + s of all lanes'
// registers. All jobs share the rows.
#ifndef ROWS
#define ROWS 8192
#endif

// Jobs that can run at once, and senders of all jobs together.
#ifndef JOBS
#define JOBS 256
#endif
#ifndef SENDERS
#define SENDERS 256
#endif

// Hosts that frames can be sent on to.
#ifndef HOSTS
#define HOSTS 1024
#endif

// Numbers that a duplicate filter remembers: 2W (docs/wire.md).
#define FILTER 1024

// A frame has 22 lanes, lane j is wired to register j.
#define LANES 22

// EACH_LANE(do) writes do(j) for every lane, the highest first: a later line wins
// where a fault of a lower lane counts before that of a higher one.
#define EACH_LANE(do) \
    do(21) do(20) do(19) do(18) do(17) do(16) do(15) do(14) do(13) do(12) do(11) \
    do(10) do(9) do(8) do(7) do(6) do(5) do(4) do(3) do(2) do(1) do(0)

// The same, as the fields of a header stand in a frame.
#define LANE_FIELDS(do) \
    do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) do(8) do(9) do(10) \
    do(11) do(12) do(13) do(14) do(15) do(16) do(17) do(18) do(19) do(20) do(21)
