// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"os"
	"path/filepath"

	rt "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
)

// StartSwitch starts a switch for the example. It returns the address of its P4Runtime server, a
// function that passes a frame from a port through it and returns its output, and one that stops
// it.
func StartSwitch() (target string, ingress func(port uint16, frame []byte) []byte, stop func()) {
	dir, err := os.MkdirTemp("", "libra-p4-*")
	if err != nil {
		panic(err)
	}
	f := newFake()
	path := filepath.Join(dir, "p4rt")
	end, err := f.listen(path)
	if err != nil {
		panic(err)
	}
	ingress = func(port uint16, frame []byte) []byte {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.program.process(port, frame)[0].Data
	}
	return "unix:" + path, ingress, func() {
		end()
		os.RemoveAll(dir)
	}
}

// Switch is a switch for tests of users of this package: a P4Runtime server that runs the program
// frame by frame.
type Switch = fake

// NewSwitch returns a switch without a program.
func NewSwitch() *Switch { return newFake() }

// Serve serves P4Runtime on a Unix socket until stop is called.
func (f *fake) Serve(path string) (stop func(), err error) { return f.listen(path) }

// Restart resets it to a switch that has just started.
func (f *fake) Restart() { f.restart() }

// Load gives the switch another controller's program, which it does not run.
func (f *fake) Load(c *rt.ForwardingPipelineConfig) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config = c
}

// Fail makes the next write fail.
func (f *fake) Fail(code codes.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = code
}

// Output is a frame sent by a switch.
type Output struct {
	Port uint16
	Data []byte
}

// Process passes a frame through the program, if there is one.
func (f *fake) Process(port uint16, frame []byte) (all []Output) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.program == nil {
		return nil
	}
	for _, out := range f.program.process(port, frame) {
		all = append(all, Output(out))
	}
	return all
}
