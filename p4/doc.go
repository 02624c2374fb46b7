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
package p4
