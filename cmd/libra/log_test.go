// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster/node"
)

// Lines of the log have a date and a time zone. In systemd's journal, which has both, they have a
// priority.
func TestLinesOfTheLog(t *testing.T) {
	for journal, want := range map[bool]string{
		false: `^time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d) level=INFO msg="a worker joined" worker=1
time=\S+ level=WARN msg=lost
time=\S+ level=ERROR msg=ended time=7
$`,
		true: `^<6>level=INFO msg="a worker joined" worker=1
<4>level=WARN msg=lost
<3>level=ERROR msg=ended g.time=7
$`,
	} {
		var out bytes.Buffer
		log := slog.New(newLog(&out, false, journal))
		log.Debug("not shown")
		log.Info("a worker joined", "worker", 1)
		log.Warn("lost")
		if journal {
			log = log.WithGroup("g")
		}
		log.Error("ended", "time", 7)
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("journal %v: %s\nwant %s", journal, &out, want)
		}
	}
	var out bytes.Buffer
	slog.New(newLog(&out, true, true)).Debug("shown")
	if got := out.String(); got != "<7>level=DEBUG msg=shown\n" {
		t.Errorf("%q", got)
	}
}

// Only what the journal reads has its style: not a file into which a service's child writes.
func TestWhatTheJournalReads(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer pipe.Close()
	for variable, want := range map[string]bool{"": false, "9:31264": true} {
		t.Setenv("JOURNAL_STREAM", variable)
		if toJournal(file) || toJournal(pipe) != want {
			t.Errorf("JOURNAL_STREAM=%q: a file %v, a pipe %v", variable, toJournal(file), toJournal(pipe))
		}
	}
}

// In the journal, "journalctl -p warning" shows why a command ended, with each of its lines, but
// not that it was stopped.
func TestLastWordsHaveAPriority(t *testing.T) {
	for want, err := range map[string]error{
		"<3>libra: one\n<3>two\n": errors.New("one\ntwo"),
		"<6>libra: interrupted\n": context.Canceled,
	} {
		var out bytes.Buffer
		code := exitCode(lastWords{&out}, err, errors.Is(err, context.Canceled))
		if out.String() != want {
			t.Errorf("%q with code %d, want %q", &out, code, want)
		}
	}
}

// An interrupted server whose last checkpoint was not written has failed.
func TestInterruptedWithoutACheckpoint(t *testing.T) {
	var out bytes.Buffer
	err := errors.Join(context.Canceled, fmt.Errorf("%w: no space left", node.ErrNotSaved))
	if code := exitCode(&out, err, true); code != exitFailure || !strings.Contains(out.String(), "the last checkpoint was not written: no space left") {
		t.Errorf("exit code %d: %s", code, &out)
	}
}
