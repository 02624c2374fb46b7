package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"
)

// peerArgument makes the test binary a peer's process.
const peerArgument = "peer-process"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == peerArgument {
		if err := RunPeer(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func testConfig(t *testing.T) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Rounds: 1, Duration: 30 * time.Millisecond, WarmUp: 30 * time.Millisecond,
		PeerCommand: []string{self, peerArgument},
	}
}

// run runs and skips the test where privileges are missing.
func run(t *testing.T, cfg Config) *Report {
	t.Helper()
	report, err := Run(context.Background(), cfg)
	if errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestEveryPeerMovesFrames(t *testing.T) {
	cfg := testConfig(t)
	cfg.Sizes = []int{190}
	report := run(t, cfg)
	for _, u := range report.Unavailable {
		t.Log(u)
	}
	for _, r := range report.Results {
		t.Logf("%-17s %5d %-15s %9.0f pps  user %6.0f kernel %6.0f opposite %6.0f p50 %v p99 %v %v", r.Test, r.Size, r.Peer, r.PPS, r.NsUser, r.NsKernel, r.NsOpposite, deref(r.P50us), deref(r.P99us), r.Drops)
	}
}
func deref(p *float64) float64 {
	if p == nil {
		return 0
	}
	return *p
}
