/* The bounds of the programs, each with its unit and its reason. Those of frames
 * and jobs are also in Go's packages wire and aggregator. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

/* Pairs of a stripe: as many as fit the 192 bytes that a switch's parser reads. */
#define LANES 22

/* Stripes of a frame: as many as fit the buffer of 4 KB that drivers give an XDP
 * program. */
#define MAX_STRIPES 25

/* Pairs of a frame. */
#define PAIRS (MAX_STRIPES * LANES)

/* Sequence numbers that a sender's unanswered frames span. The duplicate filter
 * remembers twice as many. */
#define WINDOW 512

/* Duplicate filters of a sender: frames use one; the other one stays as it was
 * when the banks were swapped. */
#define FILTERS 2

/* Frames that an ACK with FLAG_COVER lists, a bit of one word each, and how many
 * of them follow the answered frame: about half. */
#define COVER_BITS 64
#define COVER_AHEAD 31

/* Codes of refusals: a power of two above the largest one. */
#define CODES 16

/* Bytes before the IP header, at most: Ethernet and one tag. A global function
 * that is given the offset masks it for the verifier, with the least mask that
 * keeps it. */
#define MAX_L3 (sizeof(struct ethernet) + sizeof(struct vlan))
#define L3_MASK 0x1f

/* Keeps an offset of a stripe: less than MAX_L3, headers and MAX_STRIPES together. */
#define FRAME_MASK 0xfff

/* Jobs: each has an entry in arrays, and memory only while it exists. */
#define MAX_JOBS 256

/* Slots of a page: those that a pair of a dense frame can name by its 16 bits. A
 * power of two, because slot numbers are masked for the verifier. */
#define PAGE_SLOTS 65536

/* Banks of a job: frames add into one while the other one is read. */
#define BANKS 2

/* Senders of all jobs, 16 KiB of memory each; the loader may change it. */
#define MAX_SENDERS 1024

/* Hosts: the senders, and a server for each job; the loader sets it. */
#define MAX_ROUTES (MAX_SENDERS + MAX_JOBS)

/* Interfaces that have the program. */
#define MAX_PORTS 256

/* Attempts to take a lock: some tens of microseconds, the time of many frames.
 * If its holder's virtual CPU is suspended, the lock may stay held for
 * milliseconds. */
#define SPINS 16384

/* Bytes that a checksum's tail is summed in, and the offset of the last such
 * chunk: the verifier accepts no larger one. Bytes after it are not summed, so a
 * longer frame counts as damaged. */
#define CHUNK 16
#define MAX_OFFSET (0xffff - CHUNK)

/* The bytes of a frame of the feeder: as many as fit the single buffer of a test
 * run. */
#define MAX_FRAME 3520
