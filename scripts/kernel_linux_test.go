// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// strangers is the machine that scripts/kernel-test.sh meets: commands that take the place of those
// of Debian, and nothing else on the PATH than what they and the script call.
type strangers struct {
	dir  string
	lack string            // a command that is not there
	has  map[string]string // by the name of a command, its script
}

func newStrangers(t *testing.T) *strangers {
	t.Helper()
	s := &strangers{dir: t.TempDir(), has: map[string]string{
		"id":                 "echo 1000",
		"dpkg":               "echo amd64",
		"cpio":               "cat >/dev/null",
		"go":                 `while [ "$1" != -o ]; do shift; done; : >"$2"`,
		"apt-get":            "",
		"apt-cache":          qemuOffer("7.2", "bookworm"),
		"qemu-system-x86_64": qemu("7.2.22", ""),
	}}
	cache := filepath.Join(s.dir, "cache", "libra")
	for _, file := range []string{"linux-image-6.1.0-9-cloud-amd64/vmlinuz-6.1.0-9-cloud-amd64", "busybox-static/bin/busybox"} {
		file = filepath.Join(cache, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, module := range strings.Fields("veth udp_tunnel ip6_udp_tunnel vxlan llc stp bridge") {
		if err := os.WriteFile(filepath.Join(cache, "linux-image-6.1.0-9-cloud-amd64", module+".ko"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// qemu is the script of a QEMU whose machine prints a text.
func qemu(version, console string) string {
	return "case $* in --version) echo 'QEMU emulator version " + version + " (Debian)';; *help) ;; *) printf %b '" + console + "';; esac"
}

// qemuOffer is the script of an apt-cache that knows a QEMU.
func qemuOffer(version, suite string) string {
	return "[ $1 != madison ] || echo \"$2 | 1:" + version + "+dfsg-7+deb12u18+b3 | http://debian.example/debian " + suite + "/main amd64 Packages\""
}

// kernelTest runs scripts/kernel-test.sh there.
func (s *strangers) kernelTest(t *testing.T, args string) (int, string) {
	t.Helper()
	bin := filepath.Join(s.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tool := range strings.Fields("bash sh awk cat chmod cp dirname find grep gzip head mkdir mkfifo mktemp mv rm sed sort tail tar timeout touch tr uname") {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	for name, script := range s.has {
		if name == s.lack {
			continue
		}
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(s.dir, "cache"))
	return run(t, "./kernel-test.sh", strings.Fields(args)...)
}

// TestKernelTestSaysWhatIsInTheWay expects of each error what, where and a remedy.
func TestKernelTestSaysWhatIsInTheWay(t *testing.T) {
	const locked = "echo 'E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4711 (apt-get)' >&2; exit 100"
	for name, test := range map[string]struct {
		args string
		lack string
		has  map[string]string
		want []string
	}{
		"no such test":        {args: "-r NoSuchTest", lack: "go", want: []string{"no test of bpf afxdp for Linux 6.1 matches 'NoSuchTest'", "go test -list . ./bpf ./afxdp"}},
		"no test of a kernel": {args: "-r ^TestRxHints$", want: []string{"no test of bpf afxdp for Linux 6.1 matches '^TestRxHints$'"}},
		"no test of cards":    {args: "-n igb -r ^TestAggregateEqualsModel$", want: []string{"no test of afxdp link matches"}},
		"no expression":       {args: "-r (", want: []string{"'(' is no regular expression"}},
		"no Go":               {lack: "go", want: []string{"no go in PATH=", "install Go 1.", "https://go.dev/dl", "sudo"}},
		"no apt-get":          {lack: "apt-get", want: []string{"no apt-get in PATH=", "Debian or Ubuntu"}},
		"no QEMU": {lack: "qemu-system-x86_64",
			want: []string{"qemu-system-x86 must be installed", "As root: apt-get install --no-install-recommends -t bookworm qemu-system-x86"}},
		"no cpio": {lack: "cpio", want: []string{"cpio must be installed", "As root: apt-get install --no-install-recommends cpio\n"}},
		"QEMU too old for igb": {args: "-n igb",
			want: []string{"needs QEMU 8.0 or later, qemu-system-x86_64 is 7.2, and apt-get has none", "bookworm-backports"}},
		"no QEMU that has igb": {args: "-n igb", lack: "qemu-system-x86_64", // which must not be installed
			has:  map[string]string{"id": "echo 0", "apt-get": "[ $4 = update ] || echo installs; exit 0"},
			want: []string{"needs QEMU 8.0 or later, and apt-get has none", "bookworm-backports"}},
		"a newer QEMU elsewhere": {args: "-n igb", has: map[string]string{"apt-cache": qemuOffer("10.0.2", "bookworm-backports")},
			want: []string{"QEMU in version 8.0 or later", "As root: apt-get install --no-install-recommends -t bookworm-backports qemu-system-x86\n"}},
		"locked": {lack: "cpio", has: map[string]string{"id": "echo 0", "apt-get": locked},
			want: []string{"'apt-get update' failed. Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4711 (apt-get)", "Wait until"}},
		"no network": {lack: "cpio", has: map[string]string{"id": "echo 0", "apt-get": "echo 'E: no network' >&2; exit 100"},
			want: []string{"E: no network\n", "'apt-get update' failed, for the reason above"}},
		"does not compile":  {has: map[string]string{"go": "echo 'x.go:1: no' >&2; exit 1"}, want: []string{"x.go:1: no\n", "tests of bpf cannot be compiled for amd64"}},
		"no such subtest":   {args: "-r ^TestOrdering$/sub", has: map[string]string{"qemu-system-x86_64": qemu("7.2.22", `--- PASS: TestX (0.00s)\r\nresult of kernel-test:\r\n`)}, want: []string{"--- PASS: TestX", "nothing ran in linux-image-6.1.0-9-cloud-amd64: the tests that match '^TestOrdering$/sub'"}},
		"all tests skipped": {has: map[string]string{"qemu-system-x86_64": qemu("7.2.22", `--- SKIP: TestX (0.00s)\r\nresult of kernel-test:\r\n`)}, want: []string{"--- SKIP: TestX", "nothing ran in linux-image-6.1.0-9-cloud-amd64"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStrangers(t)
			s.lack = test.lack
			for command, script := range test.has {
				s.has[command] = script
			}
			code, out := s.kernelTest(t, test.args)
			if code != 2 || strings.Contains(out, "installs") {
				t.Errorf("status %d, want 2; printed:\n%s", code, out)
			}
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("%q is missing in:\n%s", want, out)
				}
			}
		})
	}
}

// TestKernelTestResults reads what came of the tests from what the machine printed.
func TestKernelTestResults(t *testing.T) {
	const passed = `=== RUN   TestX\r\n--- PASS: TestX (0.00s)\r\n`
	for name, test := range map[string]struct {
		args, console string
		code          int
		want          string
	}{
		"passed":     {"", passed + `\nresult of kernel-test:\r\n`, 0, "PASS: bpf afxdp in linux-image-6.1.0-9-cloud-amd64\n"},
		"one passed": {"-r ^TestOrdering$/sub", passed + `    --- PASS: TestX/sub (0.00s)\r\nresult of kernel-test:\r\n`, 0, "PASS: bpf afxdp"},
		"failed":     {"", passed + `\nresult of kernel-test: bpf\r\n`, 1, "FAIL: bpf in linux-image-6.1.0-9-cloud-amd64\n"},
		"stopped":    {"", passed, 1, "FAIL: the machine stopped without a result"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStrangers(t)
			s.has["qemu-system-x86_64"] = qemu("6.2.0", test.console) // old, but there are no cards
			code, out := s.kernelTest(t, test.args)
			if code != test.code || !strings.Contains(out, test.want) {
				t.Errorf("status %d, want %d with %q; printed:\n%s", code, test.code, test.want, out)
			}
			if !strings.Contains(out, "--- PASS: TestX (0.00s)\n") || strings.Contains(out, "result of") {
				t.Errorf("not what the machine printed:\n%s", out)
			}
		})
	}
}

// TestKernelTestLimit looks at the limits that make and the scripts set.
func TestKernelTestLimit(t *testing.T) {
	for args, want := range map[string]string{
		"KERNEL=6.1 LIMIT=7200": "scripts/kernel-test.sh -k 6.1 -t 7200",
		"KERNEL=6.12":           "scripts/kernel-test.sh -k 6.12 -t 3600",
		"LIMIT=7200":            "scripts/kernel-matrix.sh -t 7200",
	} {
		if code, out := run(t, "make", append([]string{"-C", "..", "-n", "--no-print-directory", "kernel-test"}, strings.Fields(args)...)...); code != 0 || strings.TrimSpace(out) != want {
			t.Errorf("make -n kernel-test %s: status %d, prints %q, want %q", args, code, out, want)
		}
	}
}
