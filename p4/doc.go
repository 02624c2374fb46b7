// SPDX-License-Identifier: Apache-2.0

// Package p4 is the control plane of the aggregator as a P4 program, which is package
// [github.com/libra-ina/libra/p4/program].
//
// [Plane] loads the program into a switch over
// P4Runtime and is an [aggregator.Plane]: jobs and admissions are table entries, statistics are
// counters. Since P4Runtime cannot read registers on every target, the program answers packets with
// a row of slots. docs/p4.md describes both.
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
