// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// Numbers of a life.
const (
	job         = 7
	epoch       = 3
	lifeWorkers = 3
	oneWay      = 100 * µs
	longer      = 3 * ms // takes what is slow
	coldKeys    = 400    // of a push: some frames, which arrive together
	pushEvery   = 200 * ms
)

// life is a job in virtual time: workers that push hot and cold rows regularly, a server and an
// aggregator, all of them real, on links without cost but a delay. Each frame is drawn. Time passes
// only where a test makes a part take some.
type life struct {
	network   *network
	model     *aggregator.Model
	server    *transport.Server
	handler   *slowStore
	workers   []*transport.Worker
	toWorker  []*memoryLink
	toSwitch  *memoryLink
	toServer  *memoryLink
	ownTime   [lifeWorkers]atomic.Int64 // between pushes, besides the pause that all make
	frozen    [lifeWorkers]atomic.Bool
	ended     atomic.Bool
	training  sync.WaitGroup
	followed  []Process
	telemetry map[string]func() *Scrape // of the processes; nil: it does not answer
}

// slowStore is a store that takes time.
type slowStore struct {
	*ps.Store
	spend atomic.Int64
}

func (s *slowStore) Accumulate(rows wire.Rows) error {
	time.Sleep(time.Duration(s.spend.Load()))
	return s.Store.Accumulate(rows)
}

func gate() {}

func address(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func newLife(t *testing.T) *life {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	l := &life{network: newNetwork(oneWay), telemetry: map[string]func() *Scrape{}}
	hot, err := packer.NewHotSet(1, []uint64{1, 2, 3, 4}, nil, packer.Meta{})
	must(err)
	exp := aggregator.DefaultExp(aggregator.Exact)
	l.model, err = aggregator.NewModel(aggregator.Config{Sample: 1})
	must(err)
	must(l.model.AddJob(aggregator.JobConfig{ID: job, Epoch: epoch, Exp: exp, Slots: hot.Slots()}))
	store, err := ps.New(ps.Config{Dim: 1, Exp: exp})
	must(err)
	l.handler = &slowStore{Store: store}
	l.toSwitch, l.toServer = l.network.open(address("10.0.0.1:1")), l.network.open(address("10.0.0.2:1"))
	sw, err := transport.NewAggregatorServer(transport.AggregatorConfig{Link: l.toSwitch, Model: l.model, Gate: gate})
	must(err)
	l.server, err = transport.NewServer(transport.ServerConfig{Link: l.toServer, Job: job, Dim: 1, Handler: l.handler, Sample: 1,
		Gate: gate})
	must(err)
	l.follow(Process{Role: Switch}, func() *Scrape {
		d, err := l.model.JobTimes(job)
		must(err)
		s := scrapeOf(nil, "")
		s.Times[Series{"", "hot", "aggregator process", "all"}] = Sum{d.Count(), d.Sum}
		return s
	})
	l.follow(Process{Role: Server}, func() *Scrape { return scrapeOf(l.server.Recorder(), "") })
	for i := range lifeWorkers {
		id := uint16(i + 1)
		at := l.network.open(address(fmt.Sprintf("10.0.1.%d:1", id)))
		l.toWorker = append(l.toWorker, at)
		must(l.model.AddSender(job, aggregator.SenderConfig{ID: id, Epoch: epoch, IP: at.Local().IP, Port: at.Local().Port}))
		must(l.server.Admit(ctx, id, at.Local().AddrPort(), epoch))
		w, err := transport.NewWorker(ctx, transport.WorkerConfig{
			Link: at, Job: job, Sender: id, AggregatorEpoch: epoch, ServerEpoch: epoch, HotSet: hot, Dim: 1, Layout: packer.Dense,
			Exp: exp, Aggregator: l.toSwitch.Local(), Server: l.toServer.Local(), Sample: 1, Gate: gate,
			Flow: retransmit.Config{MinRTO: time.Second, InitialRTO: time.Second, Silence: time.Hour},
		})
		must(err)
		l.workers = append(l.workers, w)
		l.follow(Process{Role: Worker, ID: int(id)}, func() *Scrape {
			st, err := w.Stats(ctx)
			must(err)
			s := scrapeOf(w.Recorder(), fmt.Sprint(id))
			s.Pushes, s.Own = st.Pushes, st.Own
			s.Frames = Frames{st.Hot.Sent + st.Cold.Sent, st.Hot.Retransmitted + st.Cold.Retransmitted}
			for peer, d := range map[string]time.Duration{"aggregator": st.SilentHot, "server 0": st.SilentCold[0]} {
				if d > 0 {
					s.Silent[peer] = d
				}
			}
			return s
		})
		l.training.Go(func() { l.train(t, i, w) })
	}
	t.Cleanup(func() {
		l.network.heal()
		for _, w := range l.workers {
			must(w.Close())
		}
		must(l.server.Close())
		must(sw.Close())
		l.ended.Store(true)
		l.training.Wait()
	})
	return l
}

func (l *life) follow(p Process, scrape func() *Scrape) {
	l.followed = append(l.followed, p)
	l.telemetry[p.Name()] = scrape
}

// scrapeOf is what a process shows.
func scrapeOf(r *telemetry.Recorder, worker string) *Scrape {
	s := &Scrape{Sample: 1, Times: map[Series]Sum{}, Silent: map[string]time.Duration{}, Steps: map[string]Steps{}}
	if load, ok := r.Load(); ok {
		s.Loop = Loop{load.Waiting, load.Calls - load.Sums, load.Sums, load.Frames()}
	}
	for _, of := range r.Series() {
		at := worker
		if at == "" { // a server's, whose peers are workers
			at = strings.TrimPrefix(of.Peer.String(), "worker ")
		}
		s.Times[Series{at, of.Op.String(), of.Part.String(), of.Peer.String()}] = Sum{of.Count(), of.Sum}
	}
	return s
}

// train pushes until its worker is closed.
func (l *life) train(t *testing.T, i int, w *transport.Worker) {
	keys := []uint64{1, 2}
	for k := range uint64(coldKeys) {
		keys = append(keys, 1000+k)
	}
	grads := make([]float32, len(keys))
	time.Sleep(time.Duration(i) * 5 * ms)
	for {
		ticket, err := w.Push(t.Context(), keys, grads)
		if err == nil {
			err = ticket.Wait(t.Context())
		}
		if err != nil {
			return
		}
		time.Sleep(pushEvery + time.Duration(l.ownTime[i].Load()))
		for l.frozen[i].Load() && !l.ended.Load() {
			time.Sleep(ms)
		}
	}
}

// watch follows the life for some seconds of its time, and returns the verdicts of each.
func (l *life) watch(j *Judge, seconds int) (all [][]Finding) {
	for range seconds {
		time.Sleep(time.Second)
		now := time.Now()
		for _, p := range l.followed {
			if scrape := l.telemetry[p.Name()]; scrape != nil {
				j.Note(p, now, scrape())
			}
		}
		all = append(all, j.Report(now).Verdict)
	}
	return all
}

// TestLives makes each part of a life take longer, after some quiet seconds in which nothing is
// named: that part is named, first and with its time.
func TestLives(t *testing.T) {
	for name, test := range map[string]struct {
		cause func(*life)
		want  string // begins the verdict
		kind  string
	}{
		"quiet":                  {func(*life) {}, "nothing stands out; largest: network, 0.2 of 0.2 ms", "none"},
		"between pushes":         {func(l *life) { l.ownTime[1].Store(int64(200 * ms)) }, "worker 2 slow: 2 steps/s (median 5), ", "worker"},
		"submit":                 {func(l *life) { l.toWorker[1].slowDown("alloc") }, "worker 2 slow: 15.0 of 15.2 ms are between its pushes and their first frames", "worker"},
		"worker queue":           {func(l *life) { l.toWorker[1].slowDown("queue") }, "worker 2 slow: ", "worker"},
		"worker process":         {func(l *life) { l.toWorker[1].slowDown("process") }, "worker 2 slow: ", "worker"},
		"link of a worker":       {func(l *life) { l.network.delay(l.toWorker[1], longer) }, "link of worker 2 slow: 6.2 ms to all peers (others 0.2), 0.0 % repeated", "link"},
		"link of the server":     {func(l *life) { l.network.delay(l.toServer, longer) }, "link of server 0 slow: 6.2 ms to all peers (others 0.2), 0.0 % repeated", "link"},
		"server":                 {func(l *life) { l.handler.spend.Store(int64(longer)) }, "server 0 slow: ", "server"},
		"before the switch":      {func(l *life) { l.toSwitch.slowDown("receive") }, "switch slow: hot frames 3.2 ms, cold 0.2; its program 0.0 µs, so before it", "switch"},
		"server is silent":       {func(l *life) { l.network.cut(l.toServer); l.telemetry["server 0"] = nil }, "server 0 silent for ", "silent"},
		"switch is silent":       {func(l *life) { l.network.cut(l.toSwitch); l.telemetry["switch"] = nil }, "switch silent for ", "silent"},
		"worker is silent":       {func(l *life) { l.frozen[2].Store(true); l.telemetry["worker 3"] = nil }, "worker 3 silent for ", "silent"},
		"server answers nothing": {func(l *life) { l.network.cut(l.toServer) }, "server 0 silent for ", "silent"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLife(t)
				j := NewJudge(l.followed, time.Now())
				for second, found := range l.watch(j, 6) {
					if len(found) != 1 || found[0].Kind != "none" {
						t.Errorf("quiet, after %d s: %+v", second+1, found)
					}
				}
				test.cause(l)
				all := l.watch(j, 8)
				last := all[len(all)-1]
				if last[0].Kind != test.kind || !strings.HasPrefix(last[0].Text, test.want) {
					t.Errorf("%+v, want %q", last, test.want)
				}
				for _, f := range last {
					if f.Name != last[0].Name {
						t.Errorf("besides: %+v", f)
					}
				}
				if test.kind == "silent" && all[4][0].Kind != "silent" {
					t.Errorf("after five seconds: %+v", all[4])
				}
			})
		})
	}
}

// TestPartsAreExact makes a part of the frames of one worker take longer: all of it is in that part
// of the joined rows, and none of it in others.
func TestPartsAreExact(t *testing.T) {
	type parts struct{ WorkerQueue, WorkerProcess, ServerQueue, ServerProcess, Network time.Duration }
	for name, test := range map[string]struct {
		cause func(*life)
		want  parts
	}{
		"nothing":        {func(*life) {}, parts{Network: 2 * oneWay}},
		"worker queue":   {func(l *life) { l.toWorker[0].slowDown("queue") }, parts{WorkerQueue: longer, Network: 2 * oneWay}},
		"worker process": {func(l *life) { l.toWorker[0].slowDown("process") }, parts{WorkerProcess: longer, Network: 2 * oneWay}},
		"server process": {func(l *life) { l.handler.spend.Store(int64(longer)) }, parts{ServerProcess: longer, Network: 2 * oneWay}},
		"server queue":   {func(l *life) { l.handler.spend.Store(int64(longer)) }, parts{ServerQueue: longer, ServerProcess: longer, Network: 2 * oneWay}},
		"network":        {func(l *life) { l.network.delay(l.toWorker[0], longer) }, parts{Network: 2*oneWay + 2*longer}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLife(t)
				for _, at := range l.toWorker {
					at.single.Store(true)
				}
				for i := range l.frozen { // they push once
					l.frozen[i].Store(true)
				}
				time.Sleep(time.Second)
				before, _ := l.workers[0].Recorder().Records(nil)
				after := before[len(before)-1].Time
				test.cause(l)
				keys := make([]uint64, 1)
				if name == "server queue" { // of two frames that arrive together
					keys = make([]uint64, wire.ColdCap(l.toWorker[0].Limits().MaxPayload, 1)+1)
				}
				for i := range keys {
					keys[i] = 1_000_000 + uint64(i)
				}
				ticket, err := l.workers[0].Push(t.Context(), keys, make([]float32, len(keys)))
				if err == nil {
					err = ticket.Wait(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * longer) // until all is recorded
				join := telemetry.NewJoiner()
				records, _ := l.workers[0].Recorder().Records(nil)
				for _, r := range records {
					if r.Time > after {
						join.AddWorker(r)
					}
				}
				records, _ = l.server.Recorder().Records(nil)
				for _, r := range records {
					join.AddServer(r)
				}
				rows := join.EndRound(nil, true)
				if len(rows) == 0 || len(rows) != 1 && name != "server queue" {
					t.Fatalf("%d rows", len(rows))
				}
				for _, r := range rows {
					got := parts{r.Queue, r.Process, r.ServerQueue, r.ServerProcess, r.Network}
					if got != test.want || r.State != telemetry.Whole {
						t.Errorf("%v: %+v, want %+v", r.State, got, test.want)
					}
				}
			})
		})
	}
}
