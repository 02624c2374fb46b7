package soak

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"
)

// peerArgument makes the test binary the server's process.
const peerArgument = "soak-peer-process"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == peerArgument {
		if err := RunPeer(os.Args[2:]); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Under the race detector, the server's process would sleep for a second
	// before it ends.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestSoak(t *testing.T) {
	cfg := Config{Duration: 10 * time.Second, Bound: 20 * time.Second, PeerCommand: []string{os.Args[0], peerArgument}}
	report, err := Run(t.Context(), cfg)
	if errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	if report != nil {
		j, _ := json.MarshalIndent(report, "", " ")
		t.Logf("%s", j)
	}
	if err != nil {
		t.Fatal(err)
	}
}

var _ = context.Canceled
