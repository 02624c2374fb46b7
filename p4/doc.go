// SPDX-License-Identifier: Apache-2.0

// Package p4 is the aggregator as a P4 program, and the data plane that drives it.
//
// The program is in folder program, one subject a file. [Plane] loads it into a
// switch over P4Runtime and offers it as an [aggregator.Plane]: jobs and admissions
// are table entries, statistics are counters, and the slots, which P4Runtime cannot
// read on every target, come as packets that the program answers with a row of its
// registers. docs/p4.md describes both.
//
// Folder compiled holds what the compiler made of the program, so that using it takes
// no compiler.
//
// # Units
//
// Slots are those of package aggregator. A port is a number of the switch's, as
// P4Runtime has it; an election ID is only compared.
//
// # Errors
//
// Calls return errors that wrap [ErrUnreachable], [ErrNotPrimary], [ErrOtherProgram],
// [ErrFull] or [ErrStateLost], or those of package aggregator. After ErrUnreachable the call
// may be repeated; after ErrStateLost the plane has to be opened anew.
//
// # Ownership and goroutines
//
// A Plane owns its connection. The Slots of a Bank are a copy of the switch's registers.
// Methods may be called from several goroutines, as [aggregator.Plane] demands.
package p4
