// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// inOrder looks for parts of a text, each behind the one before.
func inOrder(t *testing.T, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, part := range parts {
		_, after, found := strings.Cut(rest, part)
		if !found {
			t.Errorf("%q is missing, or not behind those before it:\n%s", part, text)
			continue
		}
		rest = after
	}
}

// TestMistakesComeInOrder writes a zero for every default at once: the errors come in
// the order of the fields, and other mistakes behind them.
func TestMistakesComeInOrder(t *testing.T) {
	text := strings.NewReplacer("backend: udp", "backend: rdma\nport: 0\nsilence: 0s", "harvest: 20ms", "harvest: 0s",
		"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, rejoin: 0s", "kind: lr", "kind: fm, factors: 0, init_scale: 0",
		"train: train.libfm", "synthetic: {rows: 0, hot: 0, hot_share: 0}").Replace(valid)
	_, err := Read(write(t, text))
	if err == nil {
		t.Fatal("no error")
	}
	inOrder(t, err.Error(), "port: ", "silence: ", "job.harvest: ", "server.rejoin: ", "model.factors: ", "model.init_scale: ",
		"data.synthetic.rows: ", "data.synthetic.hot: ", "data.synthetic.hot_share: ", `backend: "rdma" is neither "afxdp" nor "udp"`)
}

// TestRangesAreNamed pins both ends of the range in an error.
func TestRangesAreNamed(t *testing.T) {
	_, err := Read(write(t, strings.Replace(valid, "kind: lr", "kind: lr, learning_rate: -1", 1)))
	if want := "model.learning_rate: -1 is not in 1.401298464324817e-45..3.4028234663852886e+38"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

// TestDefaultsOfOthers looks at the defaults that are neither the model's nor checked
// where they are used.
func TestDefaultsOfOthers(t *testing.T) {
	c, err := Read(write(t, strings.Replace(valid, "train: train.libfm", "synthetic: {}", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if c.Server.Rejoin != 30*time.Second || c.Switch.Stripes != 10 || c.Switch.XDPMode != "" || c.Server.CheckpointEvery != nil {
		t.Errorf("%+v, %+v", c.Server, c.Switch)
	}
	// A program may leave them out too.
	c.Silence, c.Server.MaxRows, c.Server.CheckpointEvery = 0, 0, nil
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// TestUnreadableFiles takes a missing file for none that is empty, and a folder for
// no training data.
func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := Read(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no cluster file: %v", err)
	}
	if _, err := (Data{Train: dir}).Fingerprint(); err == nil || !strings.HasPrefix(err.Error(), "data.train: open "+dir+": not a regular file") {
		t.Errorf("a folder: %v", err)
	}
}

// TestFingerprintClosesItsFile looks for the file among those that the process has open.
func TestFingerprintClosesItsFile(t *testing.T) {
	const open = "/proc/self/fd"
	if _, err := os.Stat(open); err != nil {
		t.Skip("the system does not tell which files are open")
	}
	path := write(t, "rows")
	if _, err := (Data{Train: path}).Fingerprint(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(open)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(open, e.Name())); err == nil && to == path {
			t.Errorf("%s is still open", path)
		}
	}
}
