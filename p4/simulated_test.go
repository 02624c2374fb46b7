// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	rt "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/p4/program"
)

// simulated is a plane whose switch is the fake. Port n of the model is port n + 1.
type simulated struct {
	*Plane
	fake *fake
	last aggregator.Counters
}

var _ conformance.Device = (*simulated)(nil)

// elsewhere is the port of frames to hosts without a route.
const elsewhere = 3

// openSimulated starts a fake and a plane on it.
func openSimulated(tb testing.TB, compiled *program.Compiled) *simulated {
	tb.Helper()
	f, target, _ := startFake(tb)
	p, err := Open(Options{Target: target, Program: compiled, Address: conformance.Aggregator.IP, Ports: []uint32{elsewhere}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return &simulated{Plane: p, fake: f}
}

// loadedTables are the tables of lut arithmetic of a switch, as a plane loads them.
var loadedTables struct {
	once   sync.Once
	tables map[string]*switchTable
}

// openWithLUT is openSimulated with a switch that has the tables of lut arithmetic: the first call
// creates them, without the messages that TestLUTTablesAreLoadedOnce sends, and later calls share
// them, which is much faster.
func openWithLUT(tb testing.TB, compiled *program.Compiled) *simulated {
	tb.Helper()
	l := &loadedTables
	l.once.Do(func() {
		d := openSimulated(tb, nil)
		all, err := d.names.lutEntries()
		if err != nil {
			tb.Fatal(err)
		}
		for _, e := range all {
			m, err := d.names.tableEntry(e)
			if err != nil {
				tb.Fatal(err)
			}
			if err := d.fake.update(update(rt.Update_INSERT, m)); err != nil {
				tb.Fatal(err)
			}
		}
		l.tables = make(map[string]*switchTable)
		for name, t := range d.fake.program.tables {
			if strings.Contains(name, lutTablePath) {
				l.tables[name] = t
			}
		}
	})
	d := openSimulated(tb, compiled)
	for name, t := range l.tables {
		own := d.fake.program.tables[name]
		own.entries, own.data, own.ranked = t.entries, t.data, t.ranked // they are never changed
		d.lut.done += t.len()
	}
	return d
}

// lutTablePath is in the names of the tables of lut arithmetic.
const lutTablePath = ".add_lut."

// ProcessFrom implements [conformance.Device].
func (d *simulated) ProcessFrom(port int, frame, reply []byte) (v aggregator.Verdict, n int, err error) {
	in := uint16(port + 1)
	d.fake.mu.Lock()
	d.fake.program.accessed() // by the control plane
	out := d.fake.program.process(in, frame)
	reads, writes := d.fake.program.accessed()
	d.fake.mu.Unlock()
	if reads > 1 || writes > 1 { // a pipeline cannot do that
		return v, 0, fmt.Errorf("frame %x reads a register %d times and writes one %d times", frame, reads, writes)
	}
	if len(out) > 1 {
		return v, 0, fmt.Errorf("frame %x: %d frames come out", frame, len(out))
	}
	if len(out) == 1 && toAll(out[0].Data) && !toAll(frame) {
		return aggregator.Verdict{Action: aggregator.Broadcast}, copy(reply, out[0].Data), nil
	}
	if len(out) == 1 && out[0].Port == in {
		return aggregator.Verdict{Action: aggregator.Reply}, copy(reply, out[0].Data), nil
	}
	if len(out) == 1 && !bytes.Equal(out[0].Data, frame) {
		return v, 0, fmt.Errorf("frame %x comes out of port %d as %x", frame, out[0].Port, out[0].Data)
	}
	before := d.last
	if d.last, err = d.Counters(); err != nil {
		return v, 0, err
	}
	switch {
	case d.last.Passed > before.Passed:
		return aggregator.Verdict{Action: aggregator.Pass}, 0, nil
	case d.last.Forwarded > before.Forwarded && len(out) == 1:
		return aggregator.Verdict{Action: aggregator.Forward, Port: int(out[0].Port) - 1}, 0, nil
	case len(out) > 0:
		return v, 0, fmt.Errorf("frame %x comes out of port %d, and is not counted", frame, out[0].Port)
	}
	return aggregator.Verdict{Action: aggregator.Drop}, 0, nil
}

// toAll reports whether a frame goes to all senders of a job.
func toAll(frame []byte) bool { return bytes.HasPrefix(frame, []byte{0x01, 0x00, 0x5e, 76}) }
