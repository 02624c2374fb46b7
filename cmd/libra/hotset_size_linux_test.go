// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/packer"
)

// A hot set that is larger than its switch's room is refused when the server creates the job; room
// that is larger than the host's memory, when the switch starts. Then nothing has been summed, and
// what the messages advise helps.
func TestHotSetsBeyondTheSwitch(t *testing.T) {
	t.Parallel()
	const rows = packer.PageSlots + 1000
	keys := make([]uint64, rows)
	for i := range keys {
		keys[i] = uint64(i + 1)
	}
	set, err := packer.NewHotSet(1, keys, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	hot := filepath.Join(t.TempDir(), "hot.libra")
	if err := packer.SaveHotSet(hot, set); err != nil {
		t.Fatal(err)
	}
	config := handMade(t)
	with := func(slots uint64) string { // the configuration of a switch with room for this many scalars
		text, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.NewReplacer("sync: true", "sync: false", "model: {kind: fm, factors: 3,", "model: {kind: lr,",
			"switch: {", fmt.Sprintf("switch: {slots: %d, ", slots)).Replace(string(text))
		before, after, _ := strings.Cut(changed, "hot_set: ")
		_, after, _ = strings.Cut(after, ",")
		return writeFile(t, "cluster.yaml", before+"hot_set: "+hot+","+after)
	}

	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := output(t, "switch", "--config", with(uint64(info.Totalram)*uint64(info.Unit)/16+1)) //nolint:unconvert // it has 32 bits on 32-bit machines
	if code != exitFailure || !strings.Contains(stderr, "switch.slots: ") || !strings.Contains(stderr, "give the jobs fewer slots") {
		t.Errorf("more slots than memory: code %d: %s", code, stderr)
	}

	t.Run("fewer slots than the hot set has", func(t *testing.T) {
		config := with(packer.PageSlots)
		ready(t, "switch", "--config", config)
		_, stderr, code := output(t, "ps", "--config", config)
		if want := "slots: 66536 are wanted, but 0 of this aggregator's 65536 are taken, by 0 jobs: give the aggregator more (slots of its entry in the cluster file)"; code != exitFailure || !strings.Contains(stderr, want) {
			t.Errorf("code %d: %s", code, stderr)
		}
		stdout, _, _ := output(t, "stats", "--json", switchControl(t, config))
		var s Statistics
		if decodeLast(t, stdout, &s); len(s.Processes) != 1 || s.Processes[0].Switch == nil || len(s.Processes[0].Switch.Jobs) != 0 {
			t.Errorf("the switch has a job: %s", stdout)
		}
	})
	t.Run("as many", func(t *testing.T) {
		config := with(rows)
		ready(t, "switch", "--config", config)
		ready(t, "ps", "--config", config)
	})
}

// ready starts a process, waits until it is ready, and ends it with the test.
func ready(t *testing.T, args ...string) {
	t.Helper()
	cmd := libra(t.Context(), append(args, "--json")...)
	stdout := &waitBuffer{want: `"ready"`, found: make(chan struct{})}
	stderr := &waitBuffer{found: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Cancel()
		_ = cmd.Wait() // a server whose workers never came does not end well
	})
	select {
	case <-stdout.found:
	case <-time.After(time.Minute):
		t.Fatalf("libra %v is not ready: %s", args, stderr.text.String())
	}
}
