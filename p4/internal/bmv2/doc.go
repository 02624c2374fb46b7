// Package bmv2 runs a program that p4c has compiled for v1model, one frame at a time,
// as bmv2's simple_switch does. It exists so that the program of package p4 can be
// compared with the model wherever Go runs; it has what that program needs, and says
// of everything else that it lacks it.
//
// The format is that of the device configuration, "BMv2 JSON" (docs/JSON_format.md in
// the repository of bmv2), version 2.23.
package bmv2
