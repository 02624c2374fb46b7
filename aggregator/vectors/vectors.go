// SPDX-License-Identifier: Apache-2.0

// Package vectors reads the test vectors of an aggregator: frames with the required verdicts and
// answers of any implementation, and its final sums and counters. docs/wire.md describes the files,
// which are in aggregator/testdata/vectors.
//
// It is for the tests of data planes and transports, not a stable interface: it changes with any
// release.
package vectors

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/libra-ina/libra/aggregator"
)

// File is one file of vectors. Steps are in order.
type File struct {
	Name  string `json:"-"` // without .json
	About string `json:"about"`

	Address netip.Addr `json:"address"` // the aggregator's; its UDP port is 19522
	Routes  []Route    `json:"routes,omitempty"`
	Steps   []Step     `json:"steps"`

	// End holds the counters after the last step.
	End Counters `json:"end"`
}

// Route is the port of a host.
type Route struct {
	MAC  MAC `json:"mac"`
	Port int `json:"port"`
}

// Step is a management call, a frame, or a harvest: one of its pointers is set.
type Step struct {
	AddJob    *Job    `json:"add_job,omitempty"`
	RemoveJob *uint16 `json:"remove_job,omitempty"`

	AddSender    *Admission  `json:"add_sender,omitempty"`
	RemoveSender *Withdrawal `json:"remove_sender,omitempty"`

	Frame   *Frame   `json:"frame,omitempty"`
	Harvest *Harvest `json:"harvest,omitempty"`
}

// Admission admits a sender to a running job.
type Admission struct {
	Job    uint16 `json:"job"`
	Sender Sender `json:"sender"`
}

// Withdrawal removes a sender.
type Withdrawal struct {
	Job    uint16 `json:"job"`
	Sender uint16 `json:"sender"`
}

// Job is a job with its senders, in the order of admission. Absent fields have their defaults.
type Job struct {
	ID         uint16   `json:"id"`
	Epoch      uint16   `json:"epoch"`
	Mode       string   `json:"mode"`       // combine, fetchadd, sync or acked
	Arithmetic string   `json:"arithmetic"` // exact, lut or fixed
	Exp        int      `json:"exp"`
	Workers    int      `json:"workers,omitempty"`
	Slots      int      `json:"slots"`
	MaxStripes int      `json:"max_stripes,omitempty"`
	Layouts    []string `json:"layouts,omitempty"` // aligned, dense
	Senders    []Sender `json:"senders"`
}

// Sender is an admitted sender.
type Sender struct {
	ID    uint16     `json:"id"`
	Epoch uint16     `json:"epoch"`
	MAC   MAC        `json:"mac"`
	IP    netip.Addr `json:"ip"`
	Port  uint16     `json:"port,omitempty"` // UDP source port; absent: 19522
}

// Config returns the sender's configuration.
func (s Sender) Config() aggregator.SenderConfig {
	return aggregator.SenderConfig{ID: s.ID, Epoch: s.Epoch, MAC: s.MAC, IP: s.IP, Port: s.Port}
}

// Frame is one Ethernet frame and its result.
type Frame struct {
	About   string `json:"about"`
	From    int    `json:"from,omitempty"` // the ingress port
	Bytes   Hex    `json:"bytes"`
	Verdict string `json:"verdict"`          // pass, drop, reply, forward or broadcast
	Port    int    `json:"port,omitempty"`   // port to which forward sends
	Answer  Hex    `json:"answer,omitempty"` // the complete frame of reply and broadcast
}

// Harvest is a Swap and the content of the frozen bank: its nonzero slots by rank, as in
// [aggregator.Bank]. A Clear follows.
type Harvest struct {
	Job    uint16        `json:"job"`
	Slots  map[int]int64 `json:"slots"`
	Frames uint64        `json:"frames"`
	Pairs  uint64        `json:"pairs"`
}

// Counters are all nonzero counters, by the names of the fields of [aggregator.Counters],
// [aggregator.JobCounters] and [aggregator.SenderCounters].
type Counters struct {
	Aggregator Counts                       `json:"aggregator"`
	Jobs       map[uint16]Counts            `json:"jobs"`
	Senders    map[uint16]map[uint16]Counts `json:"senders"` // by job and sender
}

// Counts are counters by name. Refusals are "refused CODE", by the number of the code, except a
// sender's, which are one number.
type Counts map[string]uint64

// Hex is a byte string, in hexadecimal in JSON.
type Hex []byte

// MarshalText implements [encoding.TextMarshaler].
func (h Hex) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h)), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (h *Hex) UnmarshalText(text []byte) (err error) {
	*h, err = hex.DecodeString(string(text))
	return err
}

// MAC is an Ethernet address, in the usual notation in JSON.
type MAC [6]byte

// MarshalText implements [encoding.TextMarshaler].
func (m MAC) MarshalText() ([]byte, error) { return []byte(net.HardwareAddr(m[:]).String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (m *MAC) UnmarshalText(text []byte) error {
	a, err := net.ParseMAC(string(text))
	if err != nil {
		return err
	}
	if len(a) != len(m) {
		return fmt.Errorf("MAC address %q has %d bytes, want 6", text, len(a))
	}
	*m = MAC(a)
	return nil
}

// Config returns the job's configuration.
func (j *Job) Config() (aggregator.JobConfig, error) {
	c := aggregator.JobConfig{
		ID: j.ID, Epoch: j.Epoch, Exp: j.Exp, Workers: j.Workers, Slots: j.Slots, MaxStripes: j.MaxStripes,
	}
	for c.Mode.String() != j.Mode {
		if c.Mode++; c.Mode > aggregator.Acked {
			return c, fmt.Errorf("job %d: no mode %q", j.ID, j.Mode)
		}
	}
	for c.Arithmetic.String() != j.Arithmetic {
		if c.Arithmetic++; c.Arithmetic > aggregator.Fixed {
			return c, fmt.Errorf("job %d: no arithmetic %q", j.ID, j.Arithmetic)
		}
	}
	for _, l := range j.Layouts {
		switch l {
		case "aligned":
			c.Layouts |= aggregator.Aligned
		case "dense":
			c.Layouts |= aggregator.Dense
		default:
			return c, fmt.Errorf("job %d: no layout %q", j.ID, l)
		}
	}
	return c, nil
}

// Load reads all files of a directory, in the order of their names.
func Load(dir string) ([]*File, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("vectors: %w", err)
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("vectors: no *.json in %s", dir)
	}
	var files []*File
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("vectors: %w", err)
		}
		name := filepath.Base(path)
		f := &File{Name: name[:len(name)-len(".json")]}
		if err := json.Unmarshal(text, f); err != nil {
			return nil, fmt.Errorf("vectors: %s: %w", path, err)
		}
		files = append(files, f)
	}
	return files, nil
}
