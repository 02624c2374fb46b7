// SPDX-License-Identifier: Apache-2.0

// Package p4 is the aggregator as a P4 program, and its control plane.
//
// The program is in folder program, one subject per file. [Plane] loads it into a switch over
// P4Runtime and is an [aggregator.Plane]: jobs and admissions are table entries, statistics are
// counters. Since P4Runtime cannot read registers on every target, the program answers packets with
// a row of slots. docs/p4.md describes both.
//
// Folder compiled holds the compiler's output, so that using the program needs no compiler.
//
// # Units
//
// Slots are those of package aggregator. A port is the switch's port number in P4Runtime; an
// election ID is only compared.
//
// # Errors
//
// Calls return errors that wrap [ErrUnreachable], [ErrNotPrimary], [ErrOtherProgram], [ErrFull] or
// [ErrStateLost], or those of package aggregator. After ErrUnreachable the call may be repeated;
// after ErrStateLost the plane must be reopened.
//
// # Ownership and goroutines
//
// A Plane owns its connection. The Slots of a Bank are a copy of the switch's registers. Methods
// may be called from several goroutines, as [aggregator.Plane] requires.
package p4
