// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var recompile = flag.Bool("recompile", false, "write what p4c makes of the program")

// needP4c is the only reason to skip a test that compiles the program.
func needP4c(t *testing.T, tool string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("%s is not on the PATH: the program is not compiled in this test (docs/p4.md says how to get it)", tool)
	}
}

// compile runs a compiler on the v1model program, which must print nothing, and returns the P4Info
// and the device configuration.
func compile(t *testing.T, program string) (info, device []byte) {
	t.Helper()
	dir := t.TempDir()
	infoPath, devicePath := filepath.Join(dir, "p4info.txtpb"), filepath.Join(dir, "device.json")
	out, err := exec.Command("p4c-bm2-ss", "--p4runtime-files", infoPath, "-o", devicePath, program).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Fatalf("p4c-bm2-ss: %v\n%s", err, out)
	}
	info, err = os.ReadFile(infoPath)
	if err != nil {
		t.Fatal(err)
	}
	device, err = os.ReadFile(devicePath)
	if err != nil {
		t.Fatal(err)
	}
	return info, strip(t, device)
}

// strip removes the parts of a device configuration that the switch does not need: positions in the
// sources, the compiler's version, and white space.
func strip(t *testing.T, device []byte) []byte {
	t.Helper()
	var tree any
	d := json.NewDecoder(bytes.NewReader(device))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			delete(v, "source_info")
			delete(v, "program")
			if meta, ok := v["__meta__"].(map[string]any); ok {
				delete(meta, "compiler")
			}
			for _, child := range v {
				walk(child)
			}
		case []any:
			for _, child := range v {
				walk(child)
			}
		}
	}
	walk(tree)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(tree); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The v1model top passes the compiler's front end without a warning.
func TestV1modelCompiles(t *testing.T) {
	needP4c(t, "p4test")
	if out, err := exec.Command("p4test", "libra_v1model.p4").CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("p4test: %v\n%s", err, out)
	}
}

// The compiled files equal the compiler's output.
func TestCompiledIsCurrent(t *testing.T) {
	needP4c(t, "p4c-bm2-ss")
	info, device := compile(t, "libra_v1model.p4")
	for path, got := range map[string][]byte{infoFile: info, deviceFile: device} {
		if *recompile {
			if err := os.WriteFile(path, got, 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the compiler makes of the program: run `make p4`", path)
		}
	}
}
