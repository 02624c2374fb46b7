// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestLacksLibuv looks at libraries of PyTorch that were built with libuv, without it, and before
// PyTorch had it.
func TestLacksLibuv(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3 to ask")
	}
	t.Setenv(withoutLibuv, "") // restores it
	_ = os.Unsetenv(withoutLibuv)
	const refuses = "use_libuv was requested but PyTorch was built without libuv support"
	for name, test := range map[string]struct {
		library string
		want    bool
	}{
		"without": {refuses, true},
		"with":    {refuses + "\x00N4c10d6detail16LibUVStoreDaemonE", false},
		"before":  {"TCPStore", false},
		"none":    {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "torch", "lib"), 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"__init__.py": "raise SystemExit('loaded')\n", "lib/libtorch_cpu.so": test.library} {
				if err := os.WriteFile(filepath.Join(dir, "torch", file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PYTHONPATH", dir)
			if got := lacksLibuv(t.Context(), python); got != test.want {
				t.Errorf("says %v, want %v", got, test.want)
			}
			for _, first := range []string{"#!" + python + " -W ignore", "#!/usr/bin/env " + python} { // as of torchrun
				script := filepath.Join(dir, "train")
				if err := os.WriteFile(script, []byte(first+"\nimport torch\n"), 0o700); err != nil {
					t.Fatal(err)
				}
				if got := lacksLibuv(t.Context(), script); got != test.want {
					t.Errorf("of a script that begins with %s it says %v, want %v", first, got, test.want)
				}
			}
			if lacksLibuv(t.Context(), "/bin/sh") {
				t.Error("a shell is taken for a Python")
			}
			t.Setenv(withoutLibuv, "1")
			if lacksLibuv(t.Context(), python) {
				t.Error("overrules the user")
			}
		})
	}
}
