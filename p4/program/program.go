// SPDX-License-Identifier: Apache-2.0

// Package program is the switch program: its sources, one subject per file, what the compiler makes
// of them, and the tables, registers and counters that they declare.
//
// Folder compiled holds the compiler's output, so that using the program needs no compiler.
// docs/p4.md describes the program; package p4 loads it into a switch.
//
// # Units
//
// The size of an [Object] is a number of entries or cells; a width is one of bits.
//
// # Errors
//
// Calls return errors of files, or of a text that is no P4Info.
//
// # Ownership and goroutines
//
// Each call returns values of its own, which belong to the caller. Nothing here keeps state, so
// calls may be made from several goroutines.
//
// It is part of the switch daemon, not a stable interface: it changes with any release.
package program

import (
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"os"

	config "github.com/p4lang/p4runtime/go/p4/config/v1"
	"google.golang.org/protobuf/encoding/prototext"
)

// The program as it is compiled for v1model.
const (
	infoFile   = "compiled/libra_v1model.p4info.txtpb"
	deviceFile = "compiled/libra_v1model.json"
)

//go:embed compiled/libra_v1model.p4info.txtpb compiled/libra_v1model.json
var compiled embed.FS

// Compiled is a compiled program.
type Compiled struct {
	Info   *config.P4Info    // its description for the control plane
	Device []byte            // the switch's configuration
	Digest [sha256.Size]byte // of both, as they were read
}

// Default returns the program of this package for v1model, as bmv2 loads it.
func Default() (*Compiled, error) {
	info, infoErr := compiled.ReadFile(infoFile)
	device, deviceErr := compiled.ReadFile(deviceFile)
	if err := errors.Join(infoErr, deviceErr); err != nil {
		return nil, err
	}
	return parse(info, device)
}

// Read reads a compiled program: its P4Info as a text protocol buffer, and the target's device
// configuration.
func Read(infoPath, devicePath string) (*Compiled, error) {
	info, err := os.ReadFile(infoPath)
	if err != nil {
		return nil, fmt.Errorf("p4: P4Info: %w", err)
	}
	device, err := os.ReadFile(devicePath)
	if err != nil {
		return nil, fmt.Errorf("p4: device configuration: %w", err)
	}
	p, err := parse(info, device)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s): P4Info is what p4c writes with --p4runtime-files, as text; "+
			"the device configuration is a different file", err, infoPath)
	}
	return p, nil
}

func parse(info, device []byte) (*Compiled, error) {
	p := &Compiled{Info: new(config.P4Info), Device: device}
	if err := prototext.Unmarshal(info, p.Info); err != nil {
		return nil, fmt.Errorf("p4: P4Info: %w", err)
	}
	h := sha256.New()
	h.Write(info)
	h.Write(device)
	h.Sum(p.Digest[:0])
	return p, nil
}
