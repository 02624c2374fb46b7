// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestImage makes the container image of the program and trains in a container, which has no
// other file.
func TestImage(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("the tool's own namespaces would be needed without root")
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "storage.conf")
	storage := fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", filepath.Join(dir, "graph"), filepath.Join(dir, "run"))
	if err := os.WriteFile(config, []byte(storage), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(os.Environ(), "CONTAINERS_STORAGE_CONF="+config, "BUILDAH_ISOLATION=chroot")
		var log strings.Builder
		cmd.Stderr = &log
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s%s", name, args, err, out, &log)
		}
		return strings.TrimSpace(string(out))
	}
	libra, err := build()
	if err != nil {
		t.Fatal(err)
	}
	run("make", "-C", "..", "image", "LIBRA="+libra)
	container := run("buildah", "from", "libra")
	var result struct {
		Steps int `json:"steps"`
	}
	out := run("buildah", "run", container, "--", "/usr/bin/libra", "demo", "--backend", "udp", "--rows", "2000", "--workers", "2", "--baseline", "none", "--json")
	if err := json.Unmarshal([]byte(out), &result); err != nil || result.Steps == 0 {
		t.Errorf("%v: %s", err, out)
	}
}
