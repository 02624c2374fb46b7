// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/libra-ina/libra/cluster/demo"
)

// nobody is the unprivileged user and group.
const nobody = 65534

// TestUDPNeedsNoPrivileges trains over UDP as an unprivileged user, from a directory of that user.
func TestUDPNeedsNoPrivileges(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("already without privileges; the other tests show it")
	}
	cmd := asNobody(t)("demo", "--backend", "udp", "--sync", "--epochs", "1", "--rows", "4000", "--workers", "2", "--model", "lr", "--json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var r demo.Result
	decodeLast(t, string(out), &r)
	if len(r.WeightsSHA256) != 64 || r.WeightsSHA256 != r.ReferenceSHA256 {
		t.Errorf("got %+v", r)
	}
}

// Commands that need root report it, and name another backend only if the command has one.
func TestPrivilegesAreAskedFor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process as another user")
	}
	run := asNobody(t)
	for line, hint := range map[string]bool{
		"bench engine": false, "bench push": false, "bench aggregator --measure cost": false, "bench tenants": false, "bench allreduce --baseline none": false, "bench ring": false, "bench soak": false, "chaos": false,
		"bench glm --rows 16": false, "glm --rows 1000": true,
		"demo --rows 1000": true, "demo --rows 1000 --plane p4": false,
	} {
		var stdout, stderr bytes.Buffer
		cmd := run(strings.Fields(line)...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // its exit code shows the failure
		text := stderr.String()
		if cmd.ProcessState.ExitCode() != exitFailure || stdout.String() != "" && !strings.Contains(stdout.String(), "Not measured") || strings.Contains(stdout.String(), "baseline") ||
			!strings.Contains(text, "root") || strings.Contains(text, "udp") != hint {
			t.Errorf("libra %s: code %d\n%s%s", line, cmd.ProcessState.ExitCode(), stdout.String(), text)
		}
	}
}

// asNobody returns a function that makes commands of an unprivileged user.
func asNobody(t *testing.T) func(args ...string) *exec.Cmd {
	t.Helper()
	// Other users cannot reach the directories of go test.
	dir, err := os.MkdirTemp("", "libra-unprivileged-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "libra")
	copyFile(t, os.Args[0], program)
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) *exec.Cmd {
		cmd := libra(t.Context(), args...)
		cmd.Path, cmd.Args[0], cmd.Dir = program, program, dir
		cmd.Env = append(cmd.Env, "TMPDIR="+dir, "HOME="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return cmd
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
