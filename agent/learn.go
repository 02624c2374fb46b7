// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/heat"
)

// learnQueue bounds the keys in the queue; a single push may exceed it.
const learnQueue = 1 << 20

// learner counts keys that clients push, in its own goroutine. The worker never waits for it: if
// the learner is behind, pushes are not counted.
type learner struct {
	queue         chan []uint64
	waiting       atomic.Int64 // keys
	seen, sampled uint64       // pushes; of the worker's goroutine
	counter       *heat.SpaceSaving
	done          chan struct{} // closed when all is counted
}

func newLearner(counters int) (*learner, error) {
	counter, err := heat.NewSpaceSaving(counters)
	if err != nil {
		return nil, err
	}
	l := &learner{queue: make(chan []uint64, 64), counter: counter, done: make(chan struct{})}
	go l.countKeys()
	return l, nil
}

func (l *learner) countKeys() {
	defer close(l.done)
	for keys := range l.queue {
		for _, key := range keys {
			l.counter.Add(key)
		}
		l.waiting.Add(-int64(len(keys)))
	}
}

// offerKeys passes a push to the learner.
func (l *learner) offerKeys(keys []uint64) {
	l.seen++
	if n := l.waiting.Load(); n > 0 && n+int64(len(keys)) > learnQueue || len(l.queue) == cap(l.queue) {
		return
	}
	l.waiting.Add(int64(len(keys)))
	l.queue <- slices.Clone(keys) // not full: only this goroutine adds
	l.sampled++
}

// finishCount waits until all offered keys are counted, and returns the most frequent ones.
func (l *learner) finishCount(j *job) *Learned {
	close(l.queue)
	<-l.done
	r := l.counter.Ranking()
	out := &Learned{
		Job: j.cfg.Name, Dim: j.cfg.Dim, Pushes: l.seen, Sampled: l.sampled, Updates: r.Updates, CountErr: r.Err,
		Keys: []uint64{}, Counts: []uint64{},
	}
	for _, c := range r.Counts[:min(len(r.Counts), packer.MaxHotRows(j.cfg.Dim), MaxLearned)] {
		out.Keys, out.Counts = append(out.Keys, c.Key), append(out.Counts, c.Updates)
	}
	return out
}

// replyLearned answers a LEARN: it counts until the client sends a further message. A client that
// leaves gets no answer.
func (a *Agent) replyLearned(conn *net.UnixConn, user uint32, message []byte) error {
	ask, err := agentproto.ParseLearn(message)
	if err != nil {
		return err
	}
	j := a.jobs[ask.Job]
	if ask.Job == "" && len(a.jobs) == 1 && len(a.ranges) == 0 {
		j = a.jobs[a.jobNames()[0]]
	}
	for _, open := range a.openJobs() {
		if open.cfg.Name == ask.Job {
			j = open
		}
	}
	if j == nil {
		return fmt.Errorf("%w: %q; it serves %s", agentproto.NoJob, ask.Job, strings.Join(a.jobNames(), ", "))
	}
	l, err := newLearner(int(ask.Counters))
	if err != nil {
		return err
	}
	if !j.runInWorker(func() { j.learners = append(j.learners, l) }) {
		close(l.queue)
		<-l.done
		return j.ended
	}
	a.setHelloReceived(conn, user, false) // Close may close it
	stop := context.AfterFunc(j.ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	defer stop()
	var b [agentproto.AskLen]byte
	n, err := conn.Read(b[:])
	if !j.runInWorker(func() { j.learners = slices.DeleteFunc(j.learners, func(o *learner) bool { return o == l }) }) {
		<-j.cfg.Worker.Done() // nothing more is offered
	}
	learned := l.finishCount(j)
	switch {
	case j.ctx.Err() != nil:
		return j.ended
	case err != nil:
		return nil // the client has left
	}
	if err := agentproto.ParseAsk(b[:n]); err != nil {
		return err
	}
	text, err := json.Marshal(learned)
	if err != nil {
		return err
	}
	sendText(conn, text)
	return nil
}
