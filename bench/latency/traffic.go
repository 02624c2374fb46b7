// SPDX-License-Identifier: Apache-2.0

package latency

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/telemetry/breakdown"
	"github.com/libra-ina/libra/wire"
)

// Traffic is what a capture of a server's or an aggregator's frames shows: the sizes of its answers
// (the paper's Fig. 6), and how frequent its requests are (Fig. 7). Copies of frames count as
// frames.
type Traffic struct {
	File     string `json:"file"`
	Requests uint64 `json:"requests"`
	// Cut reports that the file ends within a block, as if its process had been killed, or that a
	// block is damaged: what follows is not counted.
	Cut bool `json:"cut,omitempty"`
	// Answers are the payloads of ACK frames to pushes, and of ROWS and SUMS frames to pulls, in
	// bytes.
	Answers []Sizes `json:"answers"`
	// Gaps are the times between a worker's consecutive requests.
	Gaps Gaps `json:"gaps"`
	// Workers is how many workers' requests arrive in a period of 1 ms, of the periods in which any
	// does.
	Workers Sizes `json:"workers"`

	gaps telemetry.Distribution
}

// Sizes is a distribution of sizes or numbers.
type Sizes struct {
	Of    string `json:"of"`
	Count uint64 `json:"count"`
	P10   int    `json:"p10"`
	P50   int    `json:"p50"`
	P90   int    `json:"p90"`
	P99   int    `json:"p99"`
	Max   int    `json:"max"`

	counts map[int]uint64
}

// Gaps is a distribution of times.
type Gaps struct {
	Count uint64        `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P90   time.Duration `json:"p90_ns"`
	P99   time.Duration `json:"p99_ns"`
	P999  time.Duration `json:"p999_ns"`
	Max   time.Duration `json:"max_ns"`
}

// period is that of the paper's Fig. 7 (b).
const period = time.Millisecond

// tally counts the frames of a capture.
type tally struct {
	requests uint64
	push     map[int]uint64
	pull     map[int]uint64
	gaps     telemetry.Histogram
	longest  time.Duration

	last    map[worker]time.Time
	began   time.Time // the current period
	active  map[worker]bool
	periods map[int]uint64
}

func newTally() *tally {
	return &tally{push: map[int]uint64{}, pull: map[int]uint64{}, last: map[worker]time.Time{}, active: map[worker]bool{},
		periods: map[int]uint64{}}
}

type worker struct{ job, id uint16 }

// readTraffic reads a capture in the format pcapng, as 'libra capture' and tcpdump write it.
func readTraffic(path string) (t Traffic, err error) {
	f, err := os.Open(path)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	c := newTally()
	cut, err := c.addFile(f)
	if err != nil {
		return t, fmt.Errorf("%s: %w", path, err)
	}
	c.endPeriod()
	if c.requests == 0 {
		return t, fmt.Errorf("%s has no frame of a worker: capture those of a server or a switch, by 'libra capture --pid'", path)
	}
	t = Traffic{File: path, Requests: c.requests, Cut: cut, gaps: c.gaps.Distribution(),
		Workers: sizesOf("workers in 1 ms", c.periods)}
	t.Gaps = Gaps{Count: t.gaps.Count(), P50: t.gaps.Quantile(0.5), P90: t.gaps.Quantile(0.9), P99: t.gaps.Quantile(0.99),
		P999: t.gaps.Quantile(0.999), Max: c.longest}
	for _, of := range []Sizes{sizesOf("push", c.push), sizesOf("pull", c.pull)} {
		if of.Count > 0 {
			t.Answers = append(t.Answers, of)
		}
	}
	return t, nil
}

// addFile counts all frames of a capture, and reports whether it ends early. A hostile file must
// not end the program: pcapgo does not promise that.
func (c *tally) addFile(f io.ReadSeeker) (cut bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the capture is damaged: %v", r)
		}
	}()
	n, cut, err := wholeBlocks(f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return cut, err
	}
	ng, err := pcapgo.NewNgReader(io.LimitReader(f, n), pcapgo.NgReaderOptions{SkipUnknownVersion: true})
	if err != nil {
		return cut, fmt.Errorf("this is no capture in the format pcapng (convert others with 'editcap -F pcapng'): %w", err)
	}
	if ng.LinkType() != layers.LinkTypeEthernet {
		return cut, fmt.Errorf("the capture has frames of %v: capture at an interface with Ethernet frames", ng.LinkType())
	}
	for {
		data, ci, err := ng.ZeroCopyReadPacketData()
		switch {
		case errors.Is(err, io.EOF):
			return cut, nil
		case err != nil:
			return cut, fmt.Errorf("the capture is damaged after %d requests: %w", c.requests, err)
		}
		if payload := udpPayload(data); payload != nil {
			c.addPayload(payload, ci.Timestamp)
		}
	}
}

// mostBlock is more than any block has: that of a frame, which tcpdump cuts after 256 KiB.
const mostBlock = 1 << 20

// wholeBlocks returns how many bytes of a file are whole blocks, each with its length in its second
// and its last word, and whether that is less than all of it. pcapgo takes any end for that of the
// capture, and allocates as much as a damaged length says, of a block, a packet or the longest
// packet of an interface.
func wholeBlocks(f io.Reader) (whole int64, cut bool, err error) {
	const (
		section, reversed = 0x0A0D0D0A, 0x4D3C2B1A // the type of a block, and its magic in the other order of bytes
		description       = 1                      // of an interface
		packet, around    = 6, 32                  // bytes of its block that are not the packet's
	)
	in := bufio.NewReaderSize(f, mostBlock)
	var order binary.ByteOrder = binary.LittleEndian
	for {
		head, err := in.Peek(12)
		switch {
		case len(head) == 0 && errors.Is(err, io.EOF):
			return whole, false, nil
		case errors.Is(err, io.EOF):
			return whole, true, nil
		case err != nil:
			return whole, true, err
		}
		if order.Uint32(head) == section {
			order = binary.LittleEndian
			if order.Uint32(head[8:]) == reversed {
				order = binary.BigEndian
			}
		}
		n := order.Uint32(head[4:])
		if n < 12 || n%4 != 0 || n > mostBlock {
			return whole, true, nil
		}
		block, err := in.Peek(int(n))
		if err != nil || order.Uint32(block[n-4:]) != n {
			return whole, true, nil //nolint:nilerr // it ends before the block does
		}
		switch order.Uint32(block) {
		case description:
			if n < 20 || order.Uint32(block[12:]) > mostBlock {
				return whole, true, nil
			}
		case packet:
			if n < around || order.Uint32(block[20:]) > n-around {
				return whole, true, nil
			}
		}
		if _, err := in.Discard(int(n)); err != nil {
			return whole, true, err
		}
		whole += int64(n)
	}
}

// udpPayload returns the payload of an Ethernet frame with a whole IPv4 packet of UDP, or nil.
func udpPayload(frame []byte) []byte {
	const ethernet, udp = 14, 8
	if len(frame) < ethernet+20 || binary.BigEndian.Uint16(frame[12:]) != 0x0800 {
		return nil
	}
	ip := frame[ethernet:]
	head, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	if ip[0]>>4 != 4 || ip[9] != 17 || head < 20 || total < head+udp || total > len(ip) {
		return nil
	}
	return ip[head+udp : total]
}

// addPayload counts a frame of Libra. Anything else is left out.
func (c *tally) addPayload(payload []byte, at time.Time) {
	h, err := wire.ParseHeader(payload)
	if err != nil {
		return
	}
	switch h.Type {
	case wire.TypeAck:
		c.push[len(payload)]++
	case wire.TypeRows, wire.TypeSums:
		c.pull[len(payload)]++
	case wire.TypeHot, wire.TypeCold, wire.TypeColdAt, wire.TypePull, wire.TypeFind:
		c.addRequest(worker{h.Job, h.Sender}, at)
	}
}

func (c *tally) addRequest(from worker, at time.Time) {
	c.requests++
	if last, ok := c.last[from]; ok {
		gap := max(0, at.Sub(last)) // a wall clock may be set
		c.gaps.Record(gap)
		c.longest = max(c.longest, gap)
	}
	c.last[from] = at
	if began := at.Truncate(period); !began.Equal(c.began) {
		c.endPeriod()
		c.began = began
	}
	c.active[from] = true
}

func (c *tally) endPeriod() {
	if n := len(c.active); n > 0 {
		c.periods[n]++
		clear(c.active)
	}
}

// sizesOf returns the distribution of numbers of which each was counted so often.
func sizesOf(of string, counts map[int]uint64) Sizes {
	s := Sizes{Of: of, counts: counts}
	for _, n := range counts {
		s.Count += n
	}
	seen := uint64(0)
	for _, size := range s.sorted() {
		seen += counts[size]
		for _, q := range []struct {
			share float64
			at    *int
		}{{0.1, &s.P10}, {0.5, &s.P50}, {0.9, &s.P90}, {0.99, &s.P99}} {
			if *q.at == 0 && float64(seen) >= q.share*float64(s.Count) {
				*q.at = size
			}
		}
		s.Max = size
	}
	return s
}

func (s *Sizes) sorted() []int {
	var all []int
	for size := range s.counts {
		all = append(all, size)
	}
	slices.Sort(all)
	return all
}

// printTraffic writes what captures show, for people.
func (r *Report) printTraffic(out *report.Printer) {
	var sizes, gaps [][]any
	for i := range r.Traffic {
		t := &r.Traffic[i]
		for _, s := range append(slices.Clone(t.Answers), t.Workers) {
			what := s.Of
			if s.Of != t.Workers.Of {
				what = "bytes of an answer to a " + s.Of
			}
			sizes = append(sizes, []any{t.File, what, s.Count, s.P10, s.P50, s.P90, s.P99, s.Max})
		}
		gaps = append(gaps, []any{t.File, t.Gaps.Count, breakdown.Short(t.Gaps.P50), breakdown.Short(t.Gaps.P90),
			breakdown.Short(t.Gaps.P99), breakdown.Short(t.Gaps.P999), breakdown.Short(t.Gaps.Max)})
	}
	if len(sizes) == 0 {
		return
	}
	out.Table("Answers, and workers with requests in 1 ms "+
		"(Figs. 6, 7 b; there, answers to pulls are much larger than those to pushes, and 50 to 200 workers' connections are active)",
		[]string{"capture", "what", "number", "p10", "p50", "p90", "p99", "max"}, sizes)
	for i := range r.Traffic {
		if r.Traffic[i].Cut {
			out.Line(fmt.Sprintf("%s ends within a frame, or is damaged there: what follows is missing.", r.Traffic[i].File))
		}
	}
	out.Table("Times between a worker's requests (Fig. 7 a; there, nearly all are short, because a push or pull is many requests)",
		[]string{"capture", "number", "p50", "p90", "p99", "p99.9", "max"}, gaps)
}

// trafficCharts returns the distributions of what captures show, if there are any.
func (r *Report) trafficCharts() []chart.Chart {
	if len(r.Traffic) == 0 {
		return nil
	}
	y := chart.Axis{Label: "share", Max: 1}
	answers := chart.Chart{Name: "answers", Title: "sizes of answers", Legend: chart.BottomRight,
		X: chart.Axis{Label: "bytes"}, Y: y}
	gaps := chart.Chart{Name: "gaps", Title: "times between a worker's requests", Legend: chart.BottomRight,
		X: chart.Axis{Label: "µs", Log: true}, Y: y}
	for i := range r.Traffic {
		t := &r.Traffic[i]
		for variant, s := range t.Answers {
			answers.Series = append(answers.Series, chart.Series{Name: t.baseName() + ", " + s.Of, Colour: i, Variant: variant,
				Points: s.cdf()})
		}
		gaps.Series = append(gaps.Series, chart.Series{Name: t.baseName(), Colour: i, Points: breakdown.CDF(t.gaps)})
	}
	return []chart.Chart{answers, gaps}
}

func (t *Traffic) baseName() string { return filepath.Base(t.File) }

// cdf returns the steps of the cumulative distribution.
func (s *Sizes) cdf() (points []chart.Point) {
	seen := uint64(0)
	for _, size := range s.sorted() {
		points = append(points, chart.Point{X: float64(size), Y: float64(seen) / float64(s.Count)})
		seen += s.counts[size]
		points = append(points, chart.Point{X: float64(size), Y: float64(seen) / float64(s.Count)})
	}
	return points
}
