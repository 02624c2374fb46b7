package p4

import (
	"os"
	"path/filepath"
)

// StartSwitch starts a switch for the example. It returns where its P4Runtime server
// is, a function that gives it a frame by a port and returns what comes out, and one
// that ends it.
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
