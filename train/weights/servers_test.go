// SPDX-License-Identifier: Apache-2.0

package weights

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libra-ina/libra/ps"
)

const noKey = 0

// serverFile writes the checkpoint of a server, with one row, or with none for noKey.
func serverFile(t *testing.T, name, attachment string, key uint64) string {
	t.Helper()
	store, err := ps.New(ps.Config{Dim: 1, Exp: ps.DefaultExp})
	if err == nil && key != noKey {
		err = store.Push([]uint64{key}, []float32{2})
	}
	store.Commit()
	var file bytes.Buffer
	path := filepath.Join(t.TempDir(), name)
	if err := errors.Join(err, store.WriteCheckpoint(&file, []byte(attachment)), os.WriteFile(path, file.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

func attachmentOf(servers string, index, step int) string {
	return fmt.Sprintf(`{"agreed": {"servers": %q, "job.sync": "true", "job.hot_set": "ab", "model.kind": "lr", "model.task": "classification"}, "server": %d, "step": %d}`, servers, index, step)
}

// TestReadCheckpoints merges checkpoints of servers, in any order, and refuses files that do not
// belong together.
func TestReadCheckpoints(t *testing.T) {
	a, b := serverFile(t, "a", attachmentOf("2", 0, 7), 5), serverFile(t, "b", attachmentOf("2", 1, 7), 6)
	w, err := Load(b, a)
	if err != nil || w.Len() != 2 || w.Kind() != "lr" {
		t.Fatalf("%+v, %v", w, err)
	}
	store, attachment, err := ReadCheckpoints(a, b)
	if want := `{"agreed":{"job.sync":"true","model.kind":"lr","model.task":"classification","servers":"1"},"server":0,"step":7}`; err != nil || string(attachment) != want || store.Len() != 2 {
		t.Errorf("%s, %v", attachment, err)
	}
	old := serverFile(t, "old", `{"agreed": {"model.kind": "lr", "model.task": "classification"}}`, 5)
	if w, err := Load(old); err != nil || w.Len() != 1 {
		t.Errorf("of the times of one server: %v", err)
	}
	of := func(training string, index int) string {
		return strings.Replace(attachmentOf("2", index, 7), `{"servers"`, fmt.Sprintf(`{"training": %q, "servers"`, training), 1)
	}
	one := serverFile(t, "one", of("0123", 0), 5)
	for _, other := range []string{serverFile(t, "also", of("0123", 1), 6), b} { // of a release without identities
		if _, err := Load(one, other); err != nil {
			t.Error(err)
		}
	}
	empty := serverFile(t, "empty", attachmentOf("2", 1, 7), noKey)
	if _, err := Load(a, empty); err != nil {
		t.Error("without rows: ", err)
	}
	for want, paths := range map[string][]string{
		empty + ": it is of a server that was started without its rows, and " + one + " of training 0123":                                   {empty, one},
		": it is of training 4567, and " + one + " of training 0123: give checkpoints of one training":                                      {one, serverFile(t, "two", of("4567", 1), 6)},
		a + ": it is of server 0 of a job with 2 (by index, from 0), and the number of files is 1: give the checkpoints of all its servers": {a},
		a + ": it is of server 0 of a job with 2 (by index, from 0), and the number of files is 3":                                          {a, b, a},
		old + ": it is of server 0 of a job with 1":                                                                                         {old, old},
		a + ": it is of server 0, as is " + a + ": give the checkpoint of each server":                                                      {a, a},
		": it is of step 8, and " + a + " of step 7: give checkpoints of one step (the one before the last is in FILE.previous)":            {a, serverFile(t, "later", attachmentOf("2", 1, 8), 6)},
		"key 5 is at server 1 and at one before it":                                                                                         {a, serverFile(t, "same", attachmentOf("2", 1, 7), 5)},
		`it names "x" servers`:   {serverFile(t, "x", attachmentOf("x", 0, 7), 5)},
		"it names server 9 of 2": {a, serverFile(t, "nine", attachmentOf("2", 9, 7), 5)},
	} {
		if _, err := Load(paths...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
