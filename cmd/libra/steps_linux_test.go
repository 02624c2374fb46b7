// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/wire"
)

// The sums of steps are sent in frames, to each host all of them, and are exact; also if frames are
// lost, duplicated or reordered.
func TestStepsEndInFrames(t *testing.T) {
	t.Parallel()
	faults := cluster.Faults{Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, Seed: 7}
	for name, c := range map[string]struct {
		optimizer string
		faults    cluster.Faults
	}{
		"weights":        {"adagrad", cluster.Faults{}},
		"weights-faults": {"adagrad", faults},
		"sums-faults":    {"none", faults},
	} {
		t.Run(name, func(t *testing.T) {
			const hosts, steps = 3, 40
			b := newStepsBed(t, hosts, c.optimizer, c.faults)
			b.steps(t, steps)
			n := b.counters(t)
			least := uint64(hosts * steps * (stepsKeys / 2 / wire.SumsCap(1472, stepsDim, 1)))
			t.Logf("%d STEP and %d SUMS frames in %d steps of %d hosts, %d SUMS frames at least", n["step_frames"], n["sums_frames"], steps, hosts, least)
			if n["step_frames"] < hosts*steps || n["sums_frames"] < least {
				t.Errorf("not all steps have ended in frames: %v", n)
			}
		})
	}
}

// toldWithin is how long calls and processes may take to end after a death, on a machine that is
// busy with other programs, too. Hosts that wait end when the grace period of the dead one is over.
const toldWithin = time.Minute

// A host that is killed in the middle of a step, and started again, drops the step for all: their
// clients are told so, and go on with the next one. No host gets wrong sums.
func TestStepsOfKilledAgent(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]bool{"while it steps": false, "while others wait for it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const hosts = 3
			b := newStepsBed(t, hosts, "none", cluster.Faults{})
			b.steps(t, 8)
			ends := b.stepUntilError(t, func(host int) int {
				if wait && host == hosts-1 {
					return 0
				}
				return 1 << 30
			})
			time.Sleep(100 * time.Millisecond)
			_ = b.agents[hosts-1].Process.Kill()
			_ = b.agents[hosts-1].Wait()
			if wait { // until the server has noticed by itself
				waitSaid(t, b.server, "lost a worker", 1)
			}
			b.startAgent(t, hosts-1)
			b.openSession(t, hosts-1)
			waitSaid(t, b.server, "the open step will be dropped, because a worker is lost", 1)
			open := b.clients[hosts-1].Welcome().NextStep
			if err := b.step(t.Context(), hosts-1, open); !errors.Is(err, agentproto.Dropped) {
				t.Errorf("the client of the agent that was started again: step %d ends with %v", open, err)
			}
			for range hosts {
				e := <-ends
				t.Logf("host %d: step %d: %v", e.host+1, e.step, e.err)
				switch {
				case e.host == hosts-1:
					if !wait && !strings.Contains(fmt.Sprint(e.err), "has gone") { // which no other end of a job is
						t.Errorf("the client of the agent that was killed: %v", e.err)
					}
				case !errors.Is(e.err, agentproto.Dropped) || e.step != open+1:
					t.Errorf("host %d: %v after step %d, want DROPPED after step %d", e.host+1, e.err, e.step, open+1)
				}
			}
			b.next = open + 1
			b.steps(t, 8)
		})
	}
}

// ended reports whether an error means that the job has ended.
func (b *stepsBed) ended(err error) bool {
	var failed *agentclient.Failed
	return errors.As(err, &failed) && (failed.Status == agentproto.Refused || failed.Status == agentproto.JobEnded) ||
		errors.Is(err, agentproto.JobEnded)
}

// stepEnd is the first error of a host.
type stepEnd struct {
	host int
	step uint64
	err  error
	at   time.Time
}

// stepUntilError takes steps of all hosts until they get an error, or have taken limit's number of
// steps.
func (b *stepsBed) stepUntilError(t *testing.T, limit func(host int) int) <-chan stepEnd {
	ends := make(chan stepEnd, len(b.clients))
	ctx, cancel := context.WithTimeout(context.Background(), 2*toldWithin)
	t.Cleanup(cancel)
	for host := range b.clients {
		go func() {
			e := stepEnd{host: host, step: b.next}
			for n := 0; n < limit(host) && e.err == nil; n++ {
				e.err = b.step(ctx, host, e.step)
				e.step++
			}
			e.at = time.Now()
			ends <- e
		}()
	}
	return ends
}

// A server that is killed in the middle of steps, and restarted at once, ends the job for its
// hosts. Each call ends, and all returned sums are right. Restarted agents continue with the new
// one.
func TestStepsOfKilledServer(t *testing.T) {
	t.Parallel()
	const hosts = 2
	b := newStepsBed(t, hosts, "none", cluster.Faults{})
	b.steps(t, 8)
	ends := b.stepUntilError(t, func(int) int { return 1 << 30 })
	time.Sleep(100 * time.Millisecond)
	_ = b.server.Process.Kill()
	killed := time.Now()
	_ = b.server.Wait()
	b.startServer(t)
	for range hosts {
		e := <-ends
		took := e.at.Sub(killed)
		t.Logf("host %d: step %d ends %v after the death: %v", e.host+1, e.step, took, e.err)
		if errors.Is(e.err, errWrongSums) || !b.ended(e.err) || took > toldWithin {
			t.Errorf("host %d: %v after %v", e.host+1, e.err, took)
		}
	}
	for i, agent := range b.agents {
		if err := agent.Wait(); err == nil {
			t.Errorf("agent %d ends well, without its only job", i+1)
		}
	}
	b.startAgents(t)
	b.steps(t, 8)
}

// A host that sends as fast as it can STEP frames of other steps, epochs and hosts, and SUMS
// frames, which only the server may send, to other hosts, changes no sums, not even its own: all
// steps end with exact sums.
func TestStepsBesideHostileHost(t *testing.T) {
	t.Parallel()
	const hosts, steps = 3, 30
	b := newStepsBed(t, hosts, "none", cluster.Faults{})
	b.steps(t, 8)
	hostile, stop := b.flood(t, b.bed.Host(hosts))
	before := time.Now()
	b.steps(t, steps)
	took := time.Since(before)
	stop()
	frames, n := hostile.Load(), b.counters(t)
	t.Logf("%d steps in %v beside %d hostile frames; %v", steps, took, frames, n)
	if frames < 1000 || n["step_frames"] < frames/12 { // a sixth of them is from the host itself, and refused only for its step
		t.Errorf("of %d hostile frames, few have come to the server: %v", frames, n)
	}
}

// epochs are the hosts' epochs at the server, in the hosts' order, from its log.
func (b *stepsBed) epochs(t *testing.T) (epochs []uint16) {
	t.Helper()
	for _, w := range b.config.Workers {
		_, after, found := strings.Cut(b.server.err.String(), fmt.Sprintf(`msg="worker connected" worker=%d `, w.ID))
		_, after, ok := strings.Cut(after, "epoch=")
		if !found || !ok {
			t.Fatalf("no epoch of worker %d in\n%s", w.ID, &b.server.err)
		}
		epoch, err := strconv.ParseUint(strings.Fields(after)[0], 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		epochs = append(epochs, uint16(epoch))
	}
	return epochs
}

// flood sends hostile frames from the last host until stop is called. It knows all numbers.
func (b *stepsBed) flood(t *testing.T, from *testbed.Node) (sent *atomic.Uint64, stop func()) {
	t.Helper()
	epochs := b.epochs(t)
	at := func(n *testbed.Node) wire.Endpoint {
		return wire.Endpoint{MAC: [6]byte(n.MAC), IP: n.IP, Port: b.config.Port}
	}
	toServer, err1 := wire.NewEnvelope(at(from), at(b.bed.Host(0)))
	toHost, err2 := wire.NewEnvelope(at(from), at(b.bed.Host(1)))
	var fd int
	all := int(binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff}))
	err := errors.Join(err1, err2, from.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: from.Index})
	}))
	if err != nil {
		t.Fatal(err)
	}
	own := uint16(len(b.config.Workers))
	rng := rand.New(rand.NewPCG(3, 4))
	frame := func(kind int) []byte {
		h := wire.Header{Type: wire.TypeStep, Job: b.config.Job.ID, Sender: own, Epoch: epochs[own-1], Seq: wire.FirstSeq + rng.Uint32N(8)}
		end := wire.StepEnd{Step: []uint64{1, 7, 5000, 1<<64 - 1}[rng.IntN(4)], HotSent: rng.Uint32(), HotAnswered: rng.Uint32(), First: rng.Uint32(), Room: 1<<32 - 1}
		e, length := toServer, wire.StepLen
		switch kind {
		case 0: // of another step
		case 1: // of another epoch
			h.Epoch += 1 + uint16(rng.Uint32N(1<<16-1))
		case 2: // of another host
			h.Sender = 1 + uint16(rng.IntN(int(own)-1))
			h.Epoch = epochs[h.Sender-1]
			end.Step = uint64(rng.IntN(100))
		case 3: // of no host, or job
			h.Sender, h.Job = uint16(rng.Uint32N(2))*77, uint16(rng.Uint32N(5))
		case 4: // too short or too long
			length += 1 - 2*rng.IntN(2)
		case 5: // to another host
			e, length = toHost, wire.SumsLen(1, stepsDim, 1)
			h.Type, h.Sender, h.Epoch = wire.TypeSums, 1, epochs[0]
			h.Seq += rng.Uint32N(1000)
		}
		f := make([]byte, e.Len()+max(length, wire.StepLen))
		payload := f[e.Len():]
		h.Put(payload)
		if kind == 5 {
			head := wire.SumsHead{Step: 8 + uint64(rng.IntN(30)), Rows: 1, Width: 1}
			wire.PutStepSums(payload, head, []uint64{0}, stepsDim, make([]float32, stepsDim))
		} else {
			end.Put(payload)
		}
		f = f[:e.Len()+length]
		e.Seal(f)
		return f
	}
	sent = new(atomic.Uint64)
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for kind := 0; ; kind = (kind + 1) % 6 {
			select {
			case <-over:
				return
			default:
			}
			if _, err := unix.Write(fd, frame(kind)); err == nil { // otherwise there is no room
				sent.Add(1)
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		close(over)
		<-ended
		_ = unix.Close(fd)
	})
	t.Cleanup(stop)
	return sent, stop
}
