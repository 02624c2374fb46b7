// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/libra-ina/libra/agent/agentproto"
)

// withVenv is a Python that makes venvs as the user nobody, who cannot read one in root's home.
const withVenv = `
import ensurepip, numpy, os, subprocess, sys, venv
if os.getuid() == 0:
    os.setuid(65534)
subprocess.run([sys.executable, "-c", ""], check=True)
`

// release returns the version of the program.
func release(t *testing.T, libra string) string {
	t.Helper()
	var v struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal([]byte(run(t, command(t, libra, "version", "--json"))), &v); err != nil || v.Version == "" {
		t.Fatalf("version %q, %v", v.Version, err)
	}
	return v.Version
}

// wheelBuilt builds the wheel once, and returns its path.
var wheelBuilt = sync.OnceValues(func() (string, error) {
	libra, err := buildLibra()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), torchLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../scripts/wheel.sh", filepath.Join(built, "wheel"))
	cmd.Env = append(os.Environ(), "LIBRA="+libra)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
})

// buildWheel returns the paths of the wheel, and of the program of its version.
func buildWheel(t *testing.T) (wheel, libra string) {
	t.Helper()
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			leaveOut(t, tool+" is not on the PATH: the wheel is not built")
		}
	}
	libra, err1 := buildLibra()
	wheel, err2 := wheelBuilt()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return wheel, libra
}

// TestPythonWheel builds a wheel, installs it as the user nobody, and runs an all-reduce.
func TestPythonWheel(t *testing.T) {
	t.Parallel()
	python := pythonThatRuns(withVenv)
	if python == "" {
		leaveOut(t, "no python3 has venv and NumPy (Debian: python3-venv, python3-numpy): the wheel is not tested")
	}
	wheel, libra := buildWheel(t)
	version := release(t, libra)
	name := regexp.MustCompile(`^libra-` + regexp.QuoteMeta(version) + `-py3-none-(manylinux_2_\d+_|linux_)\w+\.whl$`)
	if !name.MatchString(filepath.Base(wheel)) {
		t.Errorf("the wheel of Libra %s is %s", version, wheel)
	}

	b := newBed(t, jobName, config(dim, 1))
	added := run(t, within(t, torchLimit, python, "python/test/wheel.py", wheel, b.socket))
	t.Log(added)
	if want := "added " + version + " " + version; !strings.Contains(added, want) {
		t.Errorf("it prints %q, not %q", added, want)
	}
	b.idle(t)
}

const headerVersion = `(?m)^#define LIBRA_VERSION "([^"]*)"`

// TestPythonHasVersion compares the versions in the sources, which a wheel of a candidate does not
// have.
func TestPythonHasVersion(t *testing.T) {
	t.Parallel()
	program := versionIn(t, "../cmd/libra/version.go", `(?m)^const version = "(.*)"$`)
	for path, pattern := range map[string]string{
		"python/libra/_version.py": `(?m)^VERSION = "(.*)"$`,
		"c/libra.h":                headerVersion,
	} {
		if here := versionIn(t, path, pattern); here != program {
			t.Errorf("%s has version %s, cmd/libra/version.go %s", path, here, program)
		}
	}
}

// versionIn returns the version in a source file.
func versionIn(t *testing.T, path, pattern string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	m := regexp.MustCompile(pattern).FindSubmatch(text)
	if err != nil || m == nil {
		t.Fatalf("no version in %s, %v", path, err)
	}
	return string(m[1])
}

// TestPythonOfOtherVersion opens sessions with an agent that speaks another version of the
// protocol: each side names the one to upgrade, the agent to newer libraries, and the library of
// newer agents.
func TestPythonOfOtherVersion(t *testing.T) {
	t.Parallel()
	b := newBed(t, jobName, config(dim, 1))
	cmd := python(t, b, "-c", "import libra; libra.Session('clicks')")
	src, out := t.TempDir(), openDir(t)
	if err := os.CopyFS(src, os.DirFS("c")); err != nil {
		t.Fatal(err)
	}
	header := filepath.Join(src, "protocol.h")
	text, err := os.ReadFile(header)
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(text), "#define PROTOCOL_VERSION 1\n", "#define PROTOCOL_VERSION 2\n", 1)
	if newer == string(text) {
		t.Fatal("protocol.h does not define version 1")
	}
	if err := os.WriteFile(header, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(out, "libra.so.1")
	run(t, command(t, "make", "-C", src, "O="+out, "CFLAGS=-O0", library))
	cmd.Env = append(cmd.Env, "LIBRA_LIBRARY="+library)
	const agent = "speaks versions 1 to 1 of the protocol, this library, of Libra [0-9.]+, version 2: upgrade the agent to the library's release, and restart it"
	if said, err := cmd.CombinedOutput(); err == nil || !regexp.MustCompile("libra._errors.Error: .*"+agent).Match(said) {
		t.Errorf("a newer library says %s, %v", said, err)
	}

	socket := filepath.Join(out, "agent.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		conn, err := l.AcceptUnix()
		if err != nil {
			served <- err
			return
		}
		_, err1 := conn.Read(make([]byte, 1024))
		_, err2 := conn.Write((&agentproto.RefusedError{Code: agentproto.BadVersion, Oldest: 2, Newest: 3, Text: "too old"}).Marshal())
		served <- errors.Join(err1, err2, conn.Close())
	}()
	older := python(t, &bed{socket: socket}, "-c", "import libra; libra.Session('clicks')")
	const own = "speaks versions 2 to 3 of the protocol, this library, of Libra [0-9.]+, version 1: upgrade the library, or the Python package that has it, to the agent's release"
	if said, err := older.CombinedOutput(); err == nil || !regexp.MustCompile("libra._errors.Error: .*"+own).Match(said) {
		t.Errorf("an older library says %s, %v", said, err)
	}
	if err := errors.Join(l.Close(), <-served); err != nil {
		t.Error(err)
	}
}
