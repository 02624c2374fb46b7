// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"crypto/sha256"
	"embed"
	"encoding/binary"
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

// Program is a compiled program: its description for the control plane, and the switch's
// configuration.
type Program struct {
	info   *config.P4Info
	device []byte
	cookie uint64 // identifies the program in a switch by its upper half, see client.load
}

// DefaultProgram returns the program of this package for v1model, as bmv2 loads it.
func DefaultProgram() (*Program, error) {
	info, infoErr := compiled.ReadFile(infoFile)
	device, deviceErr := compiled.ReadFile(deviceFile)
	if err := errors.Join(infoErr, deviceErr); err != nil {
		return nil, err
	}
	return newProgram(info, device)
}

// ReadProgram reads a compiled program: its P4Info as a text protocol buffer, and the target's
// device configuration.
func ReadProgram(infoPath, devicePath string) (*Program, error) {
	info, err := os.ReadFile(infoPath)
	if err != nil {
		return nil, fmt.Errorf("p4: P4Info: %w", err)
	}
	device, err := os.ReadFile(devicePath)
	if err != nil {
		return nil, fmt.Errorf("p4: device configuration: %w", err)
	}
	p, err := newProgram(info, device)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s): P4Info is what p4c writes with --p4runtime-files, as text; the device configuration is a different file", err, infoPath)
	}
	return p, nil
}

func newProgram(info, device []byte) (*Program, error) {
	p := &Program{info: new(config.P4Info), device: device}
	if err := prototext.Unmarshal(info, p.info); err != nil {
		return nil, fmt.Errorf("p4: P4Info: %w", err)
	}
	h := sha256.New()
	h.Write(info)
	h.Write(device)
	// 0 would mean that there is no cookie.
	p.cookie = binary.BigEndian.Uint64(h.Sum(nil))&^loadMask | 1<<32
	return p, nil
}
