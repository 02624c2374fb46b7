// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
)

// progress is the progress of a job's training. The weights in a checkpoint mean little without it,
// so it is the checkpoint's attachment.
type progress struct {
	sync   bool
	server int // index of this one
	// agreed returns the values on which server and workers have agreed, by field.
	agreed func() map[string]string
	mu     sync.Mutex
	// step is the number of committed steps, in synchronous training.
	step uint64
	// reported is the number of acknowledged steps of each worker, in asynchronous training. Steps
	// acknowledged before a harvest began are part of the weights when that harvest is applied; one
	// may be in progress when the report arrives, so two are needed.
	reported, waiting, settled map[uint16]uint64
	// ended is the instance of the generation that has ended, 0 if none has: reports of it do not
	// count.
	ended       uint64
	complete    int          // epochs; 0 until all workers have finished
	evaluations []Evaluation // by epoch
}

// savedProgress is the attachment of a checkpoint, as JSON.
type savedProgress struct {
	// Agreed is the part of the configuration that is the same on all hosts.
	Agreed map[string]string `json:"agreed"`
	// Server is the index of the server, if there are several.
	Server int `json:"server,omitempty"`
	// Step is the number of steps that all workers of a synchronous job have
	// taken together.
	Step uint64 `json:"step,omitempty"`
	// Steps is the number of steps of each worker of an asynchronous job.
	Steps map[uint16]uint64 `json:"steps,omitempty"`
	// Complete is the requested number of epochs, if all workers have finished them.
	Complete int `json:"complete_epochs,omitempty"`
	// Evaluations are the evaluations of the held-out rows so far.
	Evaluations []Evaluation `json:"evaluations,omitempty"`
}

func newProgress(sync bool, server int) *progress {
	return &progress{
		sync: sync, server: server, agreed: func() map[string]string { return nil },
		reported: map[uint16]uint64{}, waiting: map[uint16]uint64{}, settled: map[uint16]uint64{},
	}
}

// commitSteps records that a number of steps is part of the weights, in synchronous training.
func (p *progress) commitSteps(steps uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step = steps
}

// settleReports records that a harvest has been applied and committed, in asynchronous training.
func (p *progress) settleReports() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.Copy(p.settled, p.waiting)
	maps.Copy(p.waiting, p.reported)
}

// takeReports returns what workers have reported until now, for settleUpTo.
func (p *progress) takeReports() map[uint16]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.reported)
}

// settleUpTo records that everything that was acknowledged before reports is committed: all
// harvests that have it were asked for later than they were taken.
func (p *progress) settleUpTo(reports map[uint16]uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for worker, steps := range reports {
		p.settled[worker] = max(p.settled[worker], steps)
	}
}

// addReport records how many steps of a worker are acknowledged, by the aggregator of an instance
// or, with 0, by servers alone.
func (p *progress) addReport(worker uint16, steps, instance uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if instance != 0 && instance == p.ended {
		return control.ErrFenced
	}
	p.reported[worker] = max(p.reported[worker], steps)
	return nil
}

// checkGeneration fails if a generation has ended.
func (p *progress) checkGeneration(instance uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if instance != 0 && instance == p.ended {
		return control.ErrFenced
	}
	return nil
}

// endGeneration takes back the reports that are not part of the weights: their workers may have
// frames that are in no harvest, and report again when they have sent them.
func (p *progress) endGeneration(instance uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = instance
	p.reported, p.waiting = maps.Clone(p.settled), maps.Clone(p.settled)
}

// completeEpochs records that all workers have finished, and everything is committed.
func (p *progress) completeEpochs(epochs int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complete = epochs
	maps.Copy(p.settled, p.reported)
}

// addEvaluation records an evaluation, which replaces one of the same epoch.
func (p *progress) addEvaluation(e Evaluation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, found := slices.BinarySearchFunc(p.evaluations, e.Epoch, func(e Evaluation, epoch int) int {
		return e.Epoch - epoch
	})
	if found {
		p.evaluations = slices.Delete(p.evaluations, at, at+1)
	}
	p.evaluations = slices.Insert(p.evaluations, at, e)
}

// allEvaluations returns the evaluations of all runs.
func (p *progress) allEvaluations() []Evaluation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.evaluations)
}

// firstStep returns the step at which a worker starts.
func (p *progress) firstStep(worker uint16) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sync {
		return p.step
	}
	return p.reported[worker]
}

// encodeAttachment returns the attachment of a checkpoint of the current weights.
func (p *progress) encodeAttachment() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	saved := savedProgress{Agreed: p.agreed(), Server: p.server, Complete: p.complete, Evaluations: p.evaluations}
	if p.sync {
		saved.Step = p.step
	} else {
		saved.Steps = p.settled
	}
	return json.Marshal(saved)
}

// mayChange are the fields that may differ in a resumed run: addresses, duration, and learning
// rates from now on.
var mayChange = []string{"port", "switch.stripes", "model.epochs", "model.learning_rate", "model.initial_accumulator"}

// resumeFrom continues from an attachment. The agreement is the configuration's; fields that only
// workers know, such as their data, are compared when they join. The returned fields are those on
// which they must agree.
func (p *progress) resumeFrom(attachment []byte, agreement map[string]string, epochs int) (agreed map[string]string,
	err error) {
	var saved savedProgress
	if err := json.Unmarshal(attachment, &saved); err != nil || saved.Agreed == nil {
		return nil, fmt.Errorf("it does not record the progress of training: remove it to start over")
	}
	if agreement[cluster.ServersField] != "" && saved.Agreed[cluster.ServersField] == "" {
		// It was written when there was only one server.
		saved.Agreed[cluster.ServersField] = "1"
	}
	agreed = maps.Clone(agreement)
	var differ []string
	if saved.Server != p.server {
		differ = append(differ, fmt.Sprintf("it was that of server %d and is given to server %d", saved.Server, p.server))
	}
	for _, field := range slices.Sorted(maps.Keys(saved.Agreed)) {
		if slices.Contains(mayChange, field) {
			continue
		}
		if now, ok := agreement[field]; !ok {
			agreed[field] = saved.Agreed[field]
		} else if was := saved.Agreed[field]; was != now {
			differ = append(differ, fmt.Sprintf("%s was %s and is %s", field, was, now))
		}
	}
	if _, fromFile := saved.Agreed[cluster.DataField]; !fromFile && agreement[cluster.DataField] != "" {
		differ = append(differ, cluster.DataField+" is now "+agreement[cluster.DataField])
	}
	switch {
	case differ != nil:
		return nil, fmt.Errorf("it was trained with a different configuration: %s; "+
			"restore that, or remove the checkpoint to start over", strings.Join(differ, "; "))
	case epochs < saved.Complete:
		return nil, fmt.Errorf("it has been trained for %d epochs, and model.epochs, the total, is %d: "+
			"raise that, or remove the checkpoint to start over", saved.Complete, epochs)
	}
	p.step, p.evaluations = saved.Step, saved.Evaluations
	for _, steps := range []map[uint16]uint64{p.reported, p.waiting, p.settled} {
		maps.Copy(steps, saved.Steps)
	}
	if epochs == saved.Complete {
		p.complete = epochs
	}
	return agreed, nil
}
