// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/local"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/heat"
	"github.com/libra-ina/libra/transport"
)

// learning is a running call of agent.Learn.
type learning struct {
	stop context.CancelFunc
	got  agent.Learned
	err  error
	done chan struct{}
}

func (b *bed) learn(job string, counters int) *learning {
	b.t.Helper()
	until, stop := context.WithCancel(within(b.t))
	l := &learning{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.got, l.err = agent.Learn(within(b.t), until, b.socket, job, counters)
	}()
	b.t.Cleanup(func() { stop(); <-l.done })
	return l
}

// end ends the counting.
func (l *learning) end() (agent.Learned, error) {
	l.stop()
	<-l.done
	return l.got, l.err
}

// The counts learnt from a skewed stream of two clients, with and without prepared batches, contain
// nearly all updates of the most frequent rows, with far fewer counters than keys.
func TestLearn(t *testing.T) {
	const keysInAll, top, size = 20_000, 200, 100
	b := newBed(t)
	l := b.learn("", 8*top)
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.1, 1, keysInAll-1)
	truth := &heat.Exact{}
	clients := []interface {
		Push(ctx context.Context, keys []uint64, grads []float32) (uint64, error)
		Prepare(ctx context.Context, keys []uint64) (uint64, error)
		PushPrepared(ctx context.Context, handle uint64, n int, grads []float32) (uint64, error)
		Release(ctx context.Context, handle uint64) error
		Flush(ctx context.Context) error
	}{b.dial(), b.dial()}
	grads := make([]float32, size*dim)
	// The agent starts counting at some moment, which the first pushes determine.
	for n := 0; ; n++ {
		if _, err := clients[0].Push(within(t), []uint64{1 << 50}, grads[:dim]); err != nil {
			t.Fatal(err)
		}
		if err := clients[0].Flush(within(t)); err != nil {
			t.Fatal(err)
		}
		if b.agent.Stats().Jobs[0].Learning == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	const pushes = 1500
	for n := range pushes {
		keys := make([]uint64, size)
		for i := range keys {
			keys[i] = zipf.Uint64() * 0x9e3779b97f4a7c15 // as hashed features are
		}
		c := clients[n%2]
		var err error
		if n%5 == 0 {
			var handle uint64
			if handle, err = c.Prepare(within(t), keys); err == nil {
				_, err = c.PushPrepared(within(t), handle, size, grads)
			}
			if err == nil {
				err = c.Release(within(t), handle)
			}
		} else {
			_, err = c.Push(within(t), keys, grads)
		}
		if err == nil {
			err = c.Flush(within(t))
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			truth.Add(key)
		}
	}
	got, err := l.end()
	if err != nil {
		t.Fatal(err)
	}
	if got.Job != jobName || got.Dim != dim || got.Pushes < pushes || got.Sampled > got.Pushes || got.Sampled < got.Pushes/2 || got.CountErr == 0 || len(got.Keys) != 8*top {
		t.Errorf("%d keys learnt of job %q, dimension %d, %d of %d pushes, counts too high by %d at most", len(got.Keys), got.Job, got.Dim, got.Sampled, got.Pushes, got.CountErr)
	}
	counts := map[uint64]uint64{}
	best := uint64(0)
	for i, c := range truth.Ranking().Counts {
		counts[c.Key] = c.Updates
		if i < top {
			best += c.Updates
		}
	}
	hot, err := got.Ranking().Top(top, got.Dim, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	held := uint64(0)
	for rank := range uint32(hot.Len()) {
		held += counts[hot.Key(rank)]
	}
	if share := float64(held) / float64(best); share < 0.95 {
		t.Errorf("the learnt rows hold %.3f of the updates of the %d most frequent ones", share, top)
	} else {
		t.Logf("the learnt rows hold %.4f of the updates of the %d most frequent ones; %d of %d pushes were counted", share, top, got.Sampled, got.Pushes)
	}
	if n := b.agent.Stats().Jobs[0].Learning; n != 0 {
		t.Errorf("%d still learn", n)
	}
}

// Without pushes nothing is learnt; an unknown job, too many counters and other users are refused;
// a caller that ends is forgotten.
func TestLearnFails(t *testing.T) {
	b := newBed(t)
	if got, err := b.learn(jobName, 10).end(); err != nil || got.Updates != 0 || len(got.Keys) != 0 {
		t.Errorf("without pushes: %+v, %v", got, err)
	}
	for job, want := range map[string]error{"views": agentproto.NoJob} {
		if _, err := b.learn(job, 10).end(); !errors.Is(err, want) || !strings.Contains(err.Error(), jobName) {
			t.Errorf("job %s: %v", job, err)
		}
	}
	for _, counters := range []int{0, agent.MaxCounters + 1} {
		if _, err := b.learn(jobName, counters).end(); !errors.Is(err, agentproto.BadHello) {
			t.Errorf("%d counters: %v", counters, err)
		}
	}
	name := strings.Repeat("n", 64)
	if _, err := b.learn(name, 10).end(); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "longer than 63 bytes") {
		t.Errorf("a name that no message can hold: %v", err)
	}
	ctx, cancel := context.WithCancel(within(t))
	cancel()
	if _, err := agent.Learn(ctx, within(t), b.socket, jobName, 10); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
	for deadline := within(t); b.agent.Stats().Jobs[0].Learning != 0; time.Sleep(time.Millisecond) {
		if deadline.Err() != nil {
			t.Fatal("one that has gone is still counted for")
		}
	}
	if _, err := agent.Learn(within(t), within(t), b.socket+"x", jobName, 10); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "is 'libra agent' running") {
		t.Errorf("no agent: %v", err)
	}
}

// A client must send its request before anything is counted for it.
func TestLearnRefusesOtherMessages(t *testing.T) {
	b := newBed(t)
	conn, err := net.Dial("unixpacket", b.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begin, err := (&agentproto.Learn{Job: jobName, Counters: 10}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for _, message := range [][]byte{begin, []byte("what is that?")} {
		if _, err := conn.Write(message); err != nil {
			t.Fatal(err)
		}
	}
	answer := make([]byte, 1<<12)
	n, err := conn.Read(answer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agentproto.ParseAnswer(answer[:n]); !errors.Is(err, agentproto.BadHello) {
		t.Errorf("the answer is %q, %v", answer[:n], err)
	}
}

// When an agent is closed, or its job ends, the counting ends with an error.
func TestLearnOfAnAgentThatEnds(t *testing.T) {
	for job, end := range map[string]func(*bed, *transport.Worker) error{
		jobName: func(b *bed, _ *transport.Worker) error { return b.agent.Close() },
		"ends":  func(_ *bed, w *transport.Worker) error { return w.Close() },
	} {
		t.Run(job, func(t *testing.T) {
			ends, err := local.Open(t.Context(), local.Config{Dim: dim, Hot: hotKeys(), Optimizer: sgd})
			if err != nil {
				t.Fatal(err)
			}
			defer ends.Close()
			b := newBed(t, func(cfg *agent.Config) {
				cfg.Jobs = append(cfg.Jobs, agent.Job{Name: "ends", Worker: ends.Worker(0), Dim: dim})
			})
			l := b.learn(job, 10)
			for deadline := within(t); ; time.Sleep(time.Millisecond) {
				if all := b.agent.Stats().Jobs; all[0].Learning+all[1].Learning == 1 {
					break
				}
				if deadline.Err() != nil {
					t.Fatal("the agent does not count")
				}
			}
			if _, err := b.learn("", 10).end(); !errors.Is(err, agentproto.NoJob) {
				t.Errorf("no name, but two jobs: %v", err)
			}
			if err := end(b, ends.Worker(0)); err != nil {
				t.Error(err)
			}
			<-l.done
			if l.err == nil || job == "ends" && !errors.Is(l.err, agentproto.JobEnded) {
				t.Errorf("%v", l.err)
			}
		})
	}
}
