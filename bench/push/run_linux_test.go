package push

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// peerArgument makes the test binary a peer's process.
const peerArgument = "peer-process"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == peerArgument {
		if err := RunPeer(os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// testConfig is a short run whose peers in Go carry a mark in their command lines.
func testConfig(mark string) Config {
	return Config{
		Workers: []int{2}, Batches: []int{256}, Rounds: 1, Duration: 50 * time.Millisecond, WarmUp: 20 * time.Millisecond,
		Harvest: 10 * time.Millisecond, PeerCommand: []string{os.Args[0], peerArgument, mark},
	}
}

func skipWithoutPrivileges(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
}

func TestEveryPeerSumsExactly(t *testing.T) {
	report, err := Run(t.Context(), testConfig("exact"))
	skipWithoutPrivileges(t, err)
	if err != nil {
		t.Fatal(err) // wrong sums end a run
	}
	for _, peer := range Peers() {
		if slices.ContainsFunc(report.Unavailable, func(u Unavailable) bool { return u.Peer == peer }) {
			if _, err := exec.LookPath("c++"); err == nil && exists("/usr/include/zmq.h") {
				t.Errorf("unavailable: %v", report.Unavailable)
			}
			continue
		}
		if r := report.find(2, 256, peer); r == nil || len(r.Samples) != 1 {
			t.Errorf("%s: result %+v, want one sample", peer, r)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestInterruptedRunLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := testConfig("interrupted")
	cfg.Peers = []string{PeerLibra}
	cfg.Duration = time.Minute
	cfg.Progress = func(Step) { time.AfterFunc(time.Second, cancel) }
	report, err := Run(ctx, cfg)
	skipWithoutPrivileges(t, err)
	if !errors.Is(err, context.Canceled) || report == nil {
		t.Errorf("interrupted run returned %v and %v", report, err)
	}
	if left := processesWith(t, cfg.PeerCommand[2]); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

func TestFailingPeerEndsTheRun(t *testing.T) {
	cfg := testConfig("failing")
	cfg.Peers = []string{PeerLibra}
	cfg.PeerCommand = []string{"/bin/sh", "-c", "echo not today >&2; exit 7"}
	_, err := Run(t.Context(), cfg)
	skipWithoutPrivileges(t, err)
	if err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("%v lacks the peer's own words", err)
	}
}

// processesWith returns the ids of processes with a mark as an argument.
func processesWith(t *testing.T, mark string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err == nil && slices.Contains(strings.Split(string(line), "\x00"), mark) {
			found = append(found, filepath.Base(filepath.Dir(f)))
		}
	}
	return found
}
