// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// builder is the user for whom the program is built under sudo.
const builder = 12345

// folder is the program's, once it is built.
var folder string

func TestMain(m *testing.M) {
	code := m.Run()
	if folder != "" {
		_ = os.RemoveAll(folder)
	}
	os.Exit(code)
}

// build builds the program once for all tests, as "sudo make build" does.
var build = sync.OnceValues(func() (libra string, err error) {
	if folder, err = os.MkdirTemp("", "libra-scripts-*"); err != nil {
		return "", err
	}
	bin := filepath.Join(folder, "bin")
	cmd := exec.Command("make", "-C", "..", "build", "BIN="+bin)
	cmd.Env = append(os.Environ(), fmt.Sprintf("SUDO_UID=%d", builder), fmt.Sprintf("SUDO_GID=%d", builder))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return filepath.Join(bin, "libra"), nil
})

// TestDebianPackage makes the package of a program that was built under sudo, unpacks it into
// a folder and looks at it as its user.
func TestDebianPackage(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to others")
	}
	dir := t.TempDir()
	libra, err := build()
	if err != nil {
		t.Fatal(err)
	}
	run := func(env []string, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	for _, path := range []string{libra, filepath.Dir(libra)} { // as after "sudo make demo"
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != builder {
			t.Errorf("%s is left to user %d", path, owner)
		}
	}
	run([]string{"LIBRA=" + libra}, "./deb.sh", filepath.Join(dir, "out"))
	packages, err := filepath.Glob(filepath.Join(dir, "out", "libra_*.deb"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("packages %v, %v", packages, err)
	}
	for line := range strings.Lines(run(nil, "dpkg-deb", "-c", packages[0])) {
		if !strings.Contains(line, " root/root ") {
			t.Errorf("not root's: %s", line)
		}
	}
	if control := run(nil, "dpkg-deb", "-f", packages[0]); !strings.Contains(control, "Package: libra\n") || !regexp.MustCompile(`(?m)^Version: \d+\.\d+\.\d+`).MatchString(control) {
		t.Error(control)
	}
	root := filepath.Join(dir, "root")
	run(nil, "dpkg-deb", "-x", packages[0], root)
	installed := filepath.Join(root, "usr", "bin", "libra")
	if version := run(nil, installed, "--version"); !strings.HasPrefix(version, "libra ") {
		t.Error(version)
	}
	share := filepath.Join(root, "usr", "share")
	run(nil, installed, "config", "check", filepath.Join(share, "doc", "libra", "cluster.yaml"))
	units, err := filepath.Glob(filepath.Join(root, "usr/lib/systemd/system/*.service"))
	if err != nil || len(units) < 2 {
		t.Errorf("units %v, %v", units, err)
	}
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		program := regexp.MustCompile(`(?m)^ExecStart=(\S+)`).FindSubmatch(text)
		if err != nil || program == nil {
			t.Errorf("%s: %v\n%s", unit, err, text)
		} else if _, err := os.Stat(filepath.Join(root, string(program[1]))); err != nil {
			t.Error(err)
		}
	}
	for _, file := range []string{
		"man/man1/libra.1.gz", "man/man1/libra-demo.1.gz", "doc/libra/copyright", "doc/libra/changelog.gz", "doc/libra/CHANGELOG.md.gz",
		"doc/libra/prometheus/libra-alerts.yml", "doc/libra/prometheus/prometheus.yml", "bash-completion/completions/libra", "fish/vendor_completions.d/libra.fish", "zsh/vendor-completions/_libra",
	} {
		if info, err := os.Stat(filepath.Join(share, file)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
}
