// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train/data"
)

// vans compiles the van's logic and its tests, of each variant once.
var vans = map[variant]func() error{plain: compileVan(plain), address: compileVan(address), thread: compileVan(thread)}

func compileVan(v variant) func() error {
	return sync.OnceValue(func() error {
		out, err := exec.Command("make", "-j2", "-C", "pslite", "programs", "O="+filepath.Join(built, "pslite-"+v.name),
			"CFLAGS=-Werror "+v.flags).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		return err
	})
}

// vanProgram returns the command that runs a test of the van's logic.
func vanProgram(t *testing.T, v variant, name string, args ...string) *exec.Cmd {
	t.Helper()
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			leaveOut(t, tool+" is not on the PATH: the van of ps-lite is not tested")
		}
	}
	if err := errors.Join(sources(), vans[v]()); err != nil {
		t.Fatalf("the van, %s: %v", v.name, err)
	}
	args = append([]string{filepath.Join(built, "pslite-"+v.name, name)}, args...)
	if v == thread && exec.Command("setarch", "-R", "true").Run() == nil {
		args = append([]string{"setarch", "-R"}, args...)
	}
	return command(t, args[0], args[1:]...)
}

// vanHotSet writes the hot set of the tests in C, and returns its file: the keys 3 to 300 that are
// multiples of 3.
func vanHotSet(t *testing.T) (string, *packer.HotSet) {
	t.Helper()
	var keys []uint64
	for i := range uint64(100) {
		keys = append(keys, 3*((i*7)%100+1)) // ranks are not in the order of keys
	}
	hot, err := packer.NewHotSet(1, keys, nil, packer.Meta{})
	path := filepath.Join(t.TempDir(), "hot.libra")
	if err == nil {
		err = packer.SaveHotSet(path, hot)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path, hot
}

// TestVan runs the tests of the van's logic, on fakes of ps-lite and of the agent.
func TestVan(t *testing.T) {
	t.Parallel()
	hot, _ := vanHotSet(t)
	for _, v := range []variant{plain, address, thread} {
		for _, name := range []string{"split", "push", "whole", "pull", "staleness", "gate", "early", "stop", "open", "dead", "before", "after", "agent", "unanswered", "busy"} {
			t.Run(v.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				run(t, vanProgram(t, v, "fake", name, hot))
			})
		}
	}
}

// TestVanReadsHotSets compares what the van reads with what package packer has written, and damages
// the file.
func TestVanReadsHotSets(t *testing.T) {
	t.Parallel()
	path, hot := vanHotSet(t)
	if got, want := run(t, vanProgram(t, address, "fake", "settings", path)), hot.Fingerprint().String()+" 100 1\n"; got != want {
		t.Errorf("the van has read %q, want %q", got, want)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func([]byte) []byte
		want   string
	}{
		"empty":     {func([]byte) []byte { return nil }, "no hot set of Libra"},
		"other":     {func(b []byte) []byte { b[0]++; return b }, "no hot set of Libra"},
		"version":   {func(b []byte) []byte { b[11]++; return b }, "its version differs"},
		"dimension": {func(b []byte) []byte { b[12]++; return b }, "too many"},
		"keys":      {func(b []byte) []byte { b[19]++; return b }, "too many"},
		"none":      {func(b []byte) []byte { b[23] = 0; return b }, "it has no keys"},
		"damaged":   {func(b []byte) []byte { b[100]++; return b }, "its checksum is wrong"},
		"truncated": {func(b []byte) []byte { return b[:len(b)-1] }, "it is truncated"},
		"short":     {func(b []byte) []byte { return b[:200] }, "it is truncated"},
	} {
		bad := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(bad, c.change(append([]byte(nil), data...)), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := run(t, vanProgram(t, address, "fake", "settings", bad)); !strings.Contains(got, "LIBRA_HOT_SET: "+bad) || !strings.Contains(got, c.want) {
			t.Errorf("%s: the van says %q, want %q", name, got, c.want)
		}
	}
}

// TestVanRefusesVariables checks that each variable that is wrong is named.
func TestVanRefusesVariables(t *testing.T) {
	t.Parallel()
	hot, _ := vanHotSet(t)
	for _, set := range []string{"LIBRA_HOT_SET=/none", "LIBRA_HOT_SET=", "LIBRA_HOT_EXPONENT=x", "LIBRA_HOT_EXPONENT=61", "LIBRA_STALENESS=-1",
		"LIBRA_STALENESS=5ms", "LIBRA_STALENESS=", "PS_RESEND=1", "PS_RESEND=yes", "LIBRA_JOB=hot/0", "LIBRA_JOB=", "LIBRA_PS_DEAD=never",
		"LIBRA_KEYS_OUT="} {
		name, _, _ := strings.Cut(set, "=")
		if got := run(t, vanProgram(t, address, "fake", "settings", hot, set)); !strings.HasPrefix(got, name+": ") {
			t.Errorf("%s: the van says %q", set, got)
		}
	}
	for _, set := range []string{"PS_RESEND=0", "LIBRA_STALENESS=0", "LIBRA_PS_DEAD=wait", "LIBRA_PS_DEAD=exit"} {
		if got := run(t, vanProgram(t, address, "fake", "settings", hot, set)); !strings.HasSuffix(got, " 100 1\n") {
			t.Errorf("%s: the van says %q", set, got)
		}
	}
}

// TestVanWritesKeys reads what a worker has written of its pushes: of each 64 to a server one, not
// always the same.
func TestVanWritesKeys(t *testing.T) {
	t.Parallel()
	hot, _ := vanHotSet(t)
	for _, v := range []variant{plain, address, thread} {
		dir := filepath.Join(t.TempDir(), "keys")
		cmd := vanProgram(t, v, "fake", "keys", hot)
		cmd.Env = append(os.Environ(), "LIBRA_KEYS_OUT="+dir)
		run(t, cmd)
		src, err := data.OpenKeys(filepath.Join(dir, "worker-9.keys"))
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		var s data.Sample
		var numbers [2][]uint64
		for err = src.Next(&s); err == nil; err = src.Next(&s) {
			if len(s.Keys) != 3 || s.Keys[0] != 3 || s.Keys[2] != math.MaxUint64 {
				t.Fatalf("%s: keys %v", v.name, s.Keys)
			}
			numbers[s.Keys[1]%10] = append(numbers[s.Keys[1]%10], s.Keys[1]/1000)
		}
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		for server, n := range numbers {
			places := map[uint64]bool{}
			for i, number := range n {
				places[number%64] = true
				if number/64 != uint64(i) {
					t.Errorf("%s: the pushes %v to server %d are written", v.name, n, server)
				}
			}
			if len(n) != 20 || n[0] != 0 || len(places) < 10 {
				t.Errorf("%s: the pushes %v to server %d are written", v.name, n, server)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{file: file + "/worker-9.keys: Not a directory", file + "/new": file + "/new: Not a directory"} {
		cmd := vanProgram(t, address, "fake", "keys", hot)
		cmd.Env = append(os.Environ(), "LIBRA_KEYS_OUT="+dir)
		if got := run(t, cmd); !strings.HasPrefix(got, "LIBRA_KEYS_OUT: "+want) {
			t.Errorf("%s: the van says %q", dir, got)
		}
	}
}

// TestVanOverAgent runs servers and workers on the fake of ps-lite over a real agent, while frames
// are lost, duplicated and reordered: pulls see what was acknowledged, and the stores end with the
// exact sums.
func TestVanOverAgent(t *testing.T) {
	t.Parallel()
	b := newRangeBed(t, 1, 2)
	for _, v := range []variant{plain, address, thread} {
		cmd := vanProgram(t, v, "real", b.path("hot.libra"), "300")
		cmd.Env = append(os.Environ(), "LIBRA_AGENT="+b.socket(0))
		out := run(t, cmd)
		if n, err := strconv.Atoi(strings.TrimSpace(out)); err != nil || n < 2 {
			t.Errorf("%s: the handles had %q harvests", v.name, out)
		}
	}
	b.noClients(0)
}

// TestVanAtStart checks that what is wrong when a program starts is named.
func TestVanAtStart(t *testing.T) {
	t.Parallel()
	b := newRangeBed(t, 1, 2)
	other, _ := vanHotSet(t)
	agent, hot := "LIBRA_AGENT="+b.socket(0), b.path("hot.libra")
	for _, c := range []struct {
		name, hot, rank string
		env             []string
		want            string
	}{
		{"good", hot, "1", []string{agent}, "open"},
		{"no agent", hot, "0", []string{"LIBRA_AGENT=" + b.path("none")}, "there is no " + b.path("none") + ": start libra agent"},
		{"no range", hot, "0", []string{agent, "LIBRA_JOB=cold"}, "cold/0"},
		{"more servers than jobs", hot, "2", []string{agent}, "the range hot has 2 jobs"},
		{"another hot set", other, "0", []string{agent}, "hot/0"},
		{"another exponent", hot, "0", []string{agent, "LIBRA_HOT_EXPONENT=-46"}, "LIBRA_HOT_EXPONENT: the van expects a unit of 2^-46, but that of job hot/0 is 2^-30"},
	} {
		cmd := vanProgram(t, address, "real", "open", c.hot, c.rank)
		cmd.Env = append(os.Environ(), c.env...)
		if got := run(t, cmd); !strings.Contains(got, c.want) {
			t.Errorf("%s: the van says %q, want %q", c.name, got, c.want)
		}
	}
	if os.Getuid() == 0 {
		cmd := vanProgram(t, plain, "real", "open", hot, "0")
		cmd.Env = append(os.Environ(), agent)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if got := run(t, cmd); !strings.Contains(got, "refuses job hot/0: this user may not use the job: add the user or a group of it") {
			t.Errorf("a user without access: the van says %q", got)
		}
	}
	b.noClients(0)
}
