package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/libra-ina/libra/internal/demo"
)

// TestUDPNeedsNoPrivileges trains over UDP as a user who may do nothing special,
// from a directory of that user's.
func TestUDPNeedsNoPrivileges(t *testing.T) {
	const nobody = 65534
	if os.Geteuid() != 0 {
		t.Skip("already without privileges; the other tests show it")
	}
	// Other users cannot reach the directories that go test makes.
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
	cmd := libra(t.Context(), "demo", "--backend", "udp", "--sync", "--epochs", "1", "--rows", "4000", "--workers", "2", "--model", "lr", "--json")
	cmd.Path, cmd.Args[0], cmd.Dir = program, program, dir
	cmd.Env = append(cmd.Env, "TMPDIR="+dir, "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
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
