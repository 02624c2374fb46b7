// SPDX-License-Identifier: Apache-2.0

package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/telemetry"
)

// Recording reads the records of processes again and again, and joins those of both ends of frames.
type Recording struct {
	Sources []Source
	// Jobs are those whose frames are recorded, all if there are none here: an agent shows those of
	// several.
	Jobs     []uint16
	Security access.Security
	Log      *slog.Logger
	// Write is called with rows in the order of their worker's time, a few times a second.
	Write func([]telemetry.Row) error
	// Every is the time between two readings; 0 means a quarter of a second. In half a second a busy
	// endpoint replaces all its records.
	Every time.Duration
}

// Recorded counts what a recording has read.
type Recorded struct {
	telemetry.Joined
	Torn uint64 // records that were replaced while they were read
}

const (
	recordEvery = 250 * time.Millisecond
	answerLimit = 5 * time.Second
)

// reader reads one process.
type reader struct {
	*Client
	answered bool
	failing  bool
	failed   error
	newest   time.Duration
	before   map[telemetry.Record]bool // what the last reading had
}

// Run records until ctx ends. It returns an error for each process that has never answered; the
// rows of the others are written nevertheless.
func (r *Recording) Run(ctx context.Context) (n Recorded, err error) {
	var readers []*reader
	for _, s := range r.Sources {
		rd := &reader{Client: NewClient(s, r.Security, answerLimit), newest: -1}
		readers = append(readers, rd)
		defer rd.Close()
	}
	join := telemetry.NewJoiner()
	for last := false; !last && err == nil; {
		last = ctx.Err() != nil
		n.Torn += r.readAll(readers, join)
		err = r.writeRows(join.EndRound(nil, last))
		if !last {
			select {
			case <-ctx.Done():
			case <-time.After(cmp.Or(r.Every, recordEvery)):
			}
		}
	}
	n.Joined = join.Joined
	for _, rd := range readers {
		if !rd.answered {
			err = errors.Join(err, rd.failed)
		}
	}
	return n, err
}

// readAll reads all processes at the same time. The end of a recording does not end a reading.
func (r *Recording) readAll(readers []*reader, join *telemetry.Joiner) (torn uint64) {
	type reading struct {
		side    Side
		records []telemetry.Record
		torn    int
		err     error
	}
	readings := make([]reading, len(readers))
	var all sync.WaitGroup
	for i, rd := range readers {
		all.Go(func() {
			at := &readings[i]
			at.side, at.records, at.torn, at.err = rd.read()
		})
	}
	all.Wait()
	for i, got := range readings {
		rd := readers[i]
		if got.err != nil {
			rd.failed = got.err
			if !rd.failing {
				r.Log.Warn("no records of a process", "process", rd.Name, "error", got.err)
			}
			rd.failing = true
			continue
		}
		rd.answered, rd.failing = true, false
		torn += uint64(got.torn)
		for _, rec := range got.records {
			switch {
			case len(r.Jobs) > 0 && !slices.Contains(r.Jobs, rec.Job):
			case got.side == WorkerSide:
				join.AddWorker(rec)
			default:
				join.AddServer(rec)
			}
		}
	}
	return torn
}

// read returns the records of a process that were not in the last reading.
func (rd *reader) read() (side Side, fresh []telemetry.Record, torn int, err error) {
	after := int64(-1)
	if rd.newest > Overlap {
		after = int64(rd.newest - Overlap)
	}
	var (
		h   Header
		all []telemetry.Record
	)
	err = rd.Get(context.Background(), fmt.Sprintf("/records?after=%d", after), func(r io.Reader) (err error) {
		h, all, torn, err = ReadRecords(r)
		return err
	})
	if err != nil {
		return "", nil, 0, err
	}
	now := make(map[telemetry.Record]bool, len(all))
	for _, rec := range all {
		now[rec] = true
		if !rd.before[rec] {
			fresh = append(fresh, rec)
		}
		rd.newest = max(rd.newest, rec.Time)
	}
	rd.before = now
	return h.Side, fresh, torn, nil
}

func (r *Recording) writeRows(joined []telemetry.Row) error {
	slices.SortFunc(joined, func(a, b telemetry.Row) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Number, b.Number))
	})
	return r.Write(joined)
}

// What begins the queues of a row: the column arrival.
const (
	arrivalStamped  = "stamp"   // the packets' arrival at the hosts
	arrivalReceived = "receive" // when endpoints received them from their links
	arrivalWorker   = "worker"  // the arrival at the worker's host; the server's queue as with "receive"
	arrivalServer   = "server"  // the other way round
)

func arrivalOf(r *telemetry.Row) string {
	server := r.Stamped // without a server's half
	if r.State == telemetry.Whole && r.Server != telemetry.NoServer {
		server = r.ServerStamped
	}
	switch {
	case r.Stamped && server:
		return arrivalStamped
	case r.Stamped:
		return arrivalWorker
	case server:
		return arrivalServer
	}
	return arrivalReceived
}

// Columns are the names of [Fields].
func Columns() []string {
	return []string{"time_ns", "job", "worker", "server", "epoch", "number", "op", "request_bytes", "response_bytes",
		"total_ns", "repeat_ns", "worker_queue_ns", "worker_process_ns", "server_queue_ns", "server_process_ns",
		"network_ns", "state", "arrival"}
}

// Fields returns a row as text. What is not known is empty: the parts of a frame that was sent more
// than once, and what the server did if its half is missing. Frames to the aggregator have no
// server.
func Fields(r *telemetry.Row) []string {
	f := []string{fmt.Sprint(int64(r.Time)), fmt.Sprint(r.Job), fmt.Sprint(r.Worker), fmt.Sprint(r.Server),
		fmt.Sprint(r.Epoch), fmt.Sprint(r.Number), r.Op.String(),
		fmt.Sprint(r.Request), fmt.Sprint(r.Response), fmt.Sprint(int64(r.Total)),
		"", "", "", "", "", "", r.State.String(), arrivalOf(r)}
	hot := r.Server == telemetry.NoServer
	if hot {
		f[3] = ""
	}
	parts := f[10:16]
	set := func(i int, d time.Duration) { parts[i] = fmt.Sprint(int64(d)) }
	switch {
	case r.State == telemetry.Resent:
		set(0, r.Repeat)
		return f
	case r.State == telemetry.Whole && !hot:
		set(3, r.ServerQueue)
		set(4, r.ServerProcess)
		fallthrough
	case hot:
		set(5, r.Network)
	}
	set(1, r.Queue)
	set(2, r.Process)
	return f
}
