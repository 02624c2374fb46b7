// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"errors"
	"path/filepath"
	"testing"

	rt "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/p4/program"
)

// The connection breaks and is restored: the jobs still exist.
func TestReconnects(t *testing.T) {
	t.Parallel()
	f, target, stop := startFake(t)
	p, err := Open(Options{Target: target, Address: conformance.Aggregator.IP})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.AddJob(aggregator.JobConfig{ID: 1, Slots: 100}); err != nil {
		t.Fatal(err)
	}
	stop()
	eventually(t, "the plane notices", func() bool { return p.client.requireReady() != nil })
	if err := p.AddJob(aggregator.JobConfig{ID: 2, Slots: 100}); !errors.Is(err, ErrUnreachable) {
		t.Errorf("a job without a switch: %v", err)
	}
	f.serve(t, filepath.Clean(target[len("unix:"):]))
	eventually(t, "the plane connects", func() bool { return p.client.requireReady() == nil })
	if err := p.AddJob(aggregator.JobConfig{ID: 2, Slots: 100}); err != nil {
		t.Errorf("a job behind a new connection: %v", err)
	}
	b, err := p.Swap(1)
	if err != nil {
		t.Errorf("a harvest behind a new connection: %v", err)
	} else if err := p.Clear(b); err != nil {
		t.Error(err)
	}
	if f.loads != 1 {
		t.Errorf("the program was loaded %d times", f.loads)
	}
}

// A restarted switch has no jobs.
func TestNoticesARestartedSwitch(t *testing.T) {
	f, target, stop := startFake(t)
	p, err := Open(Options{Target: target, Address: conformance.Aggregator.IP})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	stop()
	f.restart()
	f.serve(t, target[len("unix:"):])
	if err := <-p.Failed(); !errors.Is(err, ErrStateLost) {
		t.Errorf("the plane has failed with %v", err)
	}
	if err := p.AddJob(aggregator.JobConfig{ID: 2, Slots: 100}); !errors.Is(err, ErrStateLost) {
		t.Errorf("a job: %v", err)
	}
}

func TestMastership(t *testing.T) {
	_, target, _ := startFake(t)
	o := Options{Target: target, Address: conformance.Aggregator.IP, Election: 5}
	p, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	o.Election = 4
	if _, err := Open(o); !errors.Is(err, ErrNotPrimary) {
		t.Errorf("a lower election ID: %v", err)
	}
	if err := p.AddJob(aggregator.JobConfig{ID: 1, Slots: 100}); err != nil {
		t.Errorf("the primary after another's attempt: %v", err)
	}
	o.Election = 6
	q, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if err := <-p.Failed(); !errors.Is(err, ErrNotPrimary) {
		t.Errorf("the former primary has failed with %v", err)
	}
	if err := p.AddJob(aggregator.JobConfig{ID: 2, Slots: 100}); !errors.Is(err, ErrNotPrimary) {
		t.Errorf("the former primary: %v", err)
	}
}

func TestKeepsAnotherProgram(t *testing.T) {
	f, target, _ := startFake(t)
	o := Options{Target: target, Address: conformance.Aggregator.IP}
	mine, err := program.Default()
	if err != nil {
		t.Fatal(err)
	}
	f.config = &rt.ForwardingPipelineConfig{P4Info: mine.Info, Cookie: &rt.ForwardingPipelineConfig_Cookie{Cookie: 7}}
	if _, err := Open(o); !errors.Is(err, ErrOtherProgram) {
		t.Errorf("over another program: %v", err)
	}
	o.Replace = true
	p, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestNoSwitchAnswers(t *testing.T) {
	_, err := Open(Options{Target: "unix:" + t.TempDir() + "/absent", Address: conformance.Aggregator.IP})
	if !errors.Is(err, ErrUnreachable) {
		t.Errorf("no switch: %v", err)
	}
}
