// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/train/data"
)

// What a worker reports is part of a checkpoint when two harvests have been applied
// since: one may have begun before.
func TestReportsSettleAfterTwoHarvests(t *testing.T) {
	p := newProgress(false, 0)
	steps := func(want string) {
		t.Helper()
		text, err := p.encodeAttachment()
		if err != nil || string(text) != want {
			t.Errorf("%s, %v, want %s", text, err, want)
		}
	}
	steps(`{"agreed":null}`)
	p.agreed = func() map[string]string { return map[string]string{"port": "1"} }
	_ = p.addReport(3, 10, 0)
	steps(`{"agreed":{"port":"1"}}`)
	p.settleReports()
	_ = p.addReport(3, 20, 0)
	_ = p.addReport(4, 5, 0)
	steps(`{"agreed":{"port":"1"}}`)
	p.settleReports()
	steps(`{"agreed":{"port":"1"},"steps":{"3":10}}`)
	_ = p.addReport(3, 15, 0) // an old report, late
	p.settleReports()
	steps(`{"agreed":{"port":"1"},"steps":{"3":20,"4":5}}`)
	if p.firstStep(3) != 20 || p.firstStep(4) != 5 || p.firstStep(5) != 0 {
		t.Errorf("workers begin with steps %d, %d, %d", p.firstStep(3), p.firstStep(4), p.firstStep(5))
	}
	_ = p.addReport(4, 6, 0)
	p.completeEpochs(2)
	steps(`{"agreed":{"port":"1"},"steps":{"3":20,"4":6},"complete_epochs":2}`)

	again := newProgress(false, 0)
	text, _ := p.encodeAttachment()
	if _, err := again.resumeFrom(text, map[string]string{"port": "1"}, 3); err != nil {
		t.Fatal(err)
	}
	if again.firstStep(3) != 20 || again.firstStep(4) != 6 || again.complete != 0 {
		t.Errorf("resumed: %+v", again)
	}
	p = again
	steps(`{"agreed":null,"steps":{"3":20,"4":6}}`)
	again.settleReports() // a harvest that holds nothing new takes nothing back
	steps(`{"agreed":null,"steps":{"3":20,"4":6}}`)
}

// Of synchronous training the checkpoint has the one step of all.
func TestProgressOfSynchronousTraining(t *testing.T) {
	p := newProgress(true, 0)
	p.commitSteps(7)
	_ = p.addReport(1, 99, 0)
	p.completeEpochs(2)
	text, err := p.encodeAttachment()
	if want := `{"agreed":null,"step":7,"complete_epochs":2}`; err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	if p.firstStep(1) != 7 {
		t.Errorf("worker 1 begins with step %d", p.firstStep(1))
	}
}

func TestResume(t *testing.T) {
	now := map[string]string{"port": "1", "model.batch": "20", "model.epochs": "2", "model.kind": "fm"}
	for name, c := range map[string]struct {
		saved  string
		change map[string]string // of what is agreed on now
		epochs int
		want   string            // the error; empty: none
		agreed map[string]string // beside now's
	}{
		"the same":        {saved: `{"agreed":{"model.batch":"20"},"step":5}`, epochs: 2},
		"workers' fields": {saved: `{"agreed":{"model.batch":"20","data":"3 bytes"}}`, epochs: 2, agreed: map[string]string{"data": "3 bytes"}},
		"the same data":   {saved: `{"agreed":{"data":"synthetic"}}`, change: map[string]string{"data": "synthetic"}, epochs: 2, agreed: map[string]string{"data": "synthetic"}},
		"one server":      {saved: `{"agreed":{"model.batch":"20"}}`, change: map[string]string{"servers": "2"}, epochs: 2, want: "servers was 1 and is 2"},
		"the same number": {saved: `{"agreed":{"servers":"2"}}`, change: map[string]string{"servers": "2"}, epochs: 2, agreed: map[string]string{"servers": "2"}},
		"the other's":     {saved: `{"agreed":{},"server":1}`, epochs: 2, want: "it was that of server 1 and is given to server 0"},
		"pace":            {saved: `{"agreed":{"port":"2","switch.stripes":"for an MTU of 1500","model.epochs":"1","model.learning_rate":"1","model.initial_accumulator":"5"}}`, epochs: 2},
		"two fields": {
			saved: `{"agreed":{"model.kind":"lr","model.epochs":"1","model.batch":"10"}}`, epochs: 2,
			want: "it was trained with a different configuration: model.batch was 10 and is 20; model.kind was lr and is fm; restore that",
		},
		"data of a file": {saved: `{"agreed":{"model.batch":"20"}}`, change: map[string]string{"data": "synthetic"}, epochs: 2, want: "data is now synthetic"},
		"fewer epochs":   {saved: `{"agreed":{},"complete_epochs":3}`, epochs: 2, want: "it has been trained for 3 epochs, and model.epochs, the total, is 2"},
		"no JSON":        {saved: `{`, epochs: 2, want: "does not record the progress"},
		"no number":      {saved: `{"agreed":{},"step":"five"}`, epochs: 2, want: "does not record the progress"},
		"nothing":        {saved: `{}`, epochs: 2, want: "does not record the progress"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgress(true, 0)
			agreement := maps.Clone(now)
			maps.Copy(agreement, c.change)
			got, err := p.resumeFrom([]byte(c.saved), agreement, c.epochs)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "to start over") || p.step != 0 {
					t.Errorf("error %v, want %q", err, c.want)
				}
				return
			}
			want := maps.Clone(now)
			maps.Copy(want, c.agreed)
			if err != nil || !maps.Equal(got, want) {
				t.Errorf("%v, %v, want %v", got, err, want)
			}
			if _, changed := agreement["data"]; changed && c.change == nil {
				t.Error("the configuration's agreement has changed")
			}
		})
	}
	for epochs, complete := range map[int]int{2: 2, 3: 0} {
		p := newProgress(true, 0)
		if _, err := p.resumeFrom([]byte(`{"agreed":{},"step":9,"complete_epochs":2}`), now, epochs); err != nil || p.complete != complete || p.firstStep(1) != 9 {
			t.Errorf("%d of 2 epochs: %+v, %v", epochs, p, err)
		}
	}
}

// Evaluations are kept by epoch, whatever their order, in the checkpoint too. One that is made
// again, of a run that went back, takes the place of the earlier one.
func TestEvaluationsAreKept(t *testing.T) {
	p := newProgress(true, 0)
	of := func(epoch int, loss float64) Evaluation {
		return Evaluation{Epoch: epoch, Metrics: data.Metrics{Loss: data.Loss{LogLoss: &loss}}}
	}
	for _, e := range []Evaluation{of(2, 0.5), of(1, 0.75), of(3, 0.25), of(2, 0.625)} {
		p.addEvaluation(e)
	}
	want := []Evaluation{of(1, 0.75), of(2, 0.625), of(3, 0.25)}
	if diff := cmp.Diff(want, p.allEvaluations()); diff != "" {
		t.Error(diff)
	}
	text, err := p.encodeAttachment()
	if err != nil {
		t.Fatal(err)
	}
	again := newProgress(true, 0)
	if _, err := again.resumeFrom(bytes.Replace(text, []byte(`"agreed":null`), []byte(`"agreed":{}`), 1), nil, 3); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, again.allEvaluations()); diff != "" {
		t.Error(diff)
	}
}
