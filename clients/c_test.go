// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLibraryAgainstFakeAgent runs the tests in C: requests, handshakes that fail, agents that
// break the protocol or die, fork, signals, threads.
func TestLibraryAgainstFakeAgent(t *testing.T) {
	t.Parallel()
	for _, v := range []variant{plain, address, thread} {
		t.Run(v.name, func(t *testing.T) { run(t, program(t, v, "fake")) })
	}
}

// TestHeaderStandsAlone compiles the header by itself, as C11 and as C++17.
func TestHeaderStandsAlone(t *testing.T) {
	t.Parallel()
	build(t, plain)
	for _, c := range [][]string{
		{"cc", "-std=c11", "-x", "c"},
		{"c++", "-std=c++17", "-x", "c++", "-Wold-style-cast"},
	} {
		if _, err := exec.LookPath(c[0]); err != nil {
			leaveOut(t, c[0]+" is not on the PATH: libra.h is not compiled with it")
		}
		cmd := command(t, c[0], append(c[1:], "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Ic", "-fsyntax-only", "-")...)
		cmd.Stdin = strings.NewReader(`#include <libra.h>
#include <libra.h>
int main(void) { struct libra_options o = LIBRA_OPTIONS; struct libra_session *s; return libra_open(&s, &o); }
`)
		run(t, cmd)
	}
}

// TestLibraryTakesNoThreadAndNoSignal checks the functions that the shared library uses from libc.
// test/real.c checks the process.
func TestLibraryTakesNoThreadAndNoSignal(t *testing.T) {
	t.Parallel()
	dir := build(t, plain)
	symbols := run(t, command(t, "nm", "-D", filepath.Join(dir, "libra.so.1")))
	if bad := regexp.MustCompile(` U (pthread_create|thrd_create|clone|fork|vfork|signal|sigaction|sigprocmask|pthread_sigmask|signalfd|atexit|exit|abort|system|printf|puts)@`).
		FindStringSubmatch(symbols); bad != nil {
		t.Errorf("the library calls %s", bad[1])
	}
	for line := range strings.Lines(symbols) {
		if f := strings.Fields(line); len(f) == 3 && f[1] == "T" && !strings.HasPrefix(f[2], "libra_") {
			t.Errorf("the library exports %s", f[2])
		}
	}
	dynamic := run(t, command(t, "readelf", "-d", filepath.Join(dir, "libra.so.1")))
	for _, needed := range regexp.MustCompile(`\(NEEDED\).*\[(.*)\]`).FindAllStringSubmatch(dynamic, -1) {
		// The dynamic linker, which is part of libc, has the storage of threads.
		if !strings.HasPrefix(needed[1], "libc.so.") && !strings.HasPrefix(needed[1], "ld-linux") {
			t.Errorf("the library needs %s, want libc alone", needed[1])
		}
	}
}

// TestFilesCallOneWay checks that each file of the library calls only files that the list at the
// head of internal.h names after it.
func TestFilesCallOneWay(t *testing.T) {
	t.Parallel()
	dir := build(t, plain)
	header, err := os.ReadFile("c/internal.h")
	if err != nil {
		t.Fatal(err)
	}
	list, _, _ := strings.Cut(string(header), "*/\n#ifndef")
	place := map[string]int{} // in the list, by file
	for i, f := range regexp.MustCompile(`(\w+)\.c\b`).FindAllStringSubmatch(list, -1) {
		place[f[1]] = i
	}
	home, calls := map[string]string{}, map[string][]string{} // the file that defines a symbol; symbols by caller
	objects, err := filepath.Glob(filepath.Join(dir, "*.o"))
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		file := strings.TrimSuffix(filepath.Base(object), ".o")
		if _, ok := place[file]; !ok {
			t.Errorf("internal.h does not list %s.c", file)
		}
		for line := range strings.Lines(run(t, command(t, "nm", object))) {
			f := strings.Fields(line)
			switch name := f[len(f)-1]; {
			case f[len(f)-2] == "U":
				calls[file] = append(calls[file], name)
			case strings.ToUpper(f[len(f)-2]) == f[len(f)-2]:
				home[name] = file
			}
		}
	}
	if len(objects) != len(place) {
		t.Errorf("%d objects, %d files in the list of internal.h", len(objects), len(place))
	}
	between := 0
	for file, names := range calls {
		for _, name := range names {
			to, ours := home[name]
			if !ours {
				continue
			}
			between++
			if place[to] <= place[file] {
				t.Errorf("%s.c calls %s of %s.c", file, name, to)
			}
		}
	}
	if between == 0 {
		t.Error("no call between two files was found")
	}
}

// TestSystemCalls checks the system calls of a C program that opens a session, pushes, pulls and
// waits: the library creates no thread and no process, and sets no signal handler. The program
// itself only queries all handlers.
func TestSystemCalls(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("strace", "-qq", "-e", "trace=none", "true").CombinedOutput(); err != nil {
		leaveOut(t, fmt.Sprintf("strace cannot be used, so system calls are not looked at: %v %s", err, out))
	}
	b := newBed(t, jobName, config(dim, 1))
	cmd := b.real(t, plain, "push")
	trace := filepath.Join(t.TempDir(), "trace")
	traced := command(t, "strace", append([]string{"-f", "-qq", "-o", trace, "-e", "trace=process,rt_sigaction,signalfd,signalfd4,recvmsg"}, cmd.Args...)...)
	traced.Env = cmd.Env
	run(t, traced)
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]int{}
	for line := range strings.Lines(string(text)) {
		call := regexp.MustCompile(`^\d+ +(\w+)\((\w+, )?(\w*)`).FindStringSubmatch(line)
		if call == nil {
			continue
		}
		calls[call[1]]++
		switch call[1] {
		case "clone", "clone3", "fork", "vfork", "signalfd", "signalfd4":
			t.Errorf("the program calls %s", line)
		case "rt_sigaction":
			if call[3] != "NULL" {
				t.Errorf("a handler is set: %s", line)
			}
		case "recvmsg":
			if !strings.Contains(line, "MSG_CMSG_CLOEXEC") {
				t.Errorf("programs that are started inherit the memory: %s", line)
			}
		}
	}
	if calls["rt_sigaction"] == 0 || calls["recvmsg"] == 0 {
		t.Errorf("the trace lacks what the program does: %v", calls)
	}
}

// TestInstalled builds the example with the results of `make install` and pkg-config, shared and
// static.
func TestInstalled(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("pkg-config"); err != nil {
		leaveOut(t, "pkg-config is not on the PATH: the installed library is not tested")
	}
	objects, stage := build(t, plain), t.TempDir()
	// The objects are already built.
	run(t, command(t, "make", "-C", "c", "install", "O="+objects, "CFLAGS=-Werror "+plain.flags, "PREFIX=/opt/libra", "DESTDIR="+stage))
	root := filepath.Join(stage, "opt/libra")
	if to, err := os.Readlink(filepath.Join(root, "lib/libra.so.1")); err != nil || !strings.HasPrefix(to, "libra.so.1.") {
		t.Errorf("libra.so.1 is a link to %q, %v", to, err)
	}
	config := func(args ...string) []string {
		cmd := command(t, "pkg-config", append([]string{"--define-variable=prefix=" + root}, args...)...)
		cmd.Args = append(cmd.Args, "--define-variable=libdir="+root+"/lib", "--define-variable=includedir="+root+"/include", "libra")
		cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH="+filepath.Join(root, "lib/pkgconfig"))
		return strings.Fields(run(t, cmd))
	}
	if got, want := config("--modversion"), versionIn(t, "c/libra.h", headerVersion); len(got) != 1 || got[0] != want {
		t.Errorf("version %q, not %s", got, want)
	}
	for _, link := range [][]string{{}, {"-static"}} {
		example := filepath.Join(stage, "example")
		args := append([]string{"-std=c11", "-o", example, "c/example.c"}, link...)
		args = append(args, config(append([]string{"--cflags", "--libs"}, link2config(link)...)...)...)
		run(t, command(t, "cc", args...))
		cmd := command(t, example, "ads")
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+root+"/lib", "LIBRA_AGENT="+stage+"/none")
		out, err := cmd.CombinedOutput()
		if want := "example: open: libra_open: there is no " + stage + "/none: start libra agent"; err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %v, %s", link, err, out)
		}
	}
	run(t, command(t, "make", "-C", "c", "uninstall", "O="+objects, "PREFIX=/opt/libra", "DESTDIR="+stage))
	if left, _ := filepath.Glob(filepath.Join(root, "*/*libra*")); left != nil {
		t.Errorf("make uninstall left %q", left)
	}
}

func link2config(link []string) []string {
	if len(link) > 0 {
		return []string{"--static"}
	}
	return nil
}
