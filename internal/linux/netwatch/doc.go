// SPDX-License-Identifier: Apache-2.0

// Package netwatch follows what a program has read of its host's network: interfaces with their
// indexes, names, addresses and MTUs, routes and neighbours. All of it can change while the program
// runs, and who sends frames past the kernel's stack learns nothing of it by itself.
//
// A [Watch] calls a function when something has changed, told by the kernel (rtnetlink), and once a
// second, because not everything is told: another process's bpf_link, the state of a neighbour that
// nobody uses. The function reads again what it relies on, with an [Interface] among others, which
// logs what has changed and what to do about it. It exists only on Linux.
package netwatch
