// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
)

// The hot set of a job with more numbers is divided among them. What such a job cannot do is refused, with
// the field.
func TestFieldsOfShares(t *testing.T) {
	const sync = "job.sync: true; job.harvest: null; job.staleness: null; job.accumulate: null; job.harvest_frames: null; server.rejoin: null; "
	for changes, want := range map[string]string{
		"job.ids: [8, 9]":         "",
		"job.ids: [8, 8]":         "job.ids[1]: 8 is the number of another share",
		"job.id: 8; job.ids: [8]": "job.ids[0]: 8 is the number of another share",
		"job.ids: [256]":          "job.ids[0]: 256 is not in 0..255",
		"job.ids: [101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131]": "job.ids: with job.id, 32 numbers, and a hot set has at most 31 shares",
		"job.ids: [8]; job.replay_mib: 32":                                        "job.replay_mib: 32, but job.ids divides the hot set",
		"job.ids: [8]; standbys: [{address: 127.0.0.9, control: 127.0.0.9:7700}]": "standbys: some are listed, but job.ids",
		"job.ids: [8]; tls: {ca: a, cert: b, key: c}":                             "tls: there are certificates, but job.ids",
		"job.ids: [8]; job.sync: false; job.staleness: 3; job.accumulate: 1":      "job.sync: false, but job.ids",
	} {
		_, err := parse(example(t, sync+changes))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", changes, err, want)
		}
	}
	one := Job{ID: 7}
	if s, err := one.Shares(nil); s != nil || err != nil {
		t.Errorf("a job with one number is divided: %v, %v", s, err)
	}
	hot, err := packer.NewHotSet(1, []uint64{3, 4}, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := (Job{ID: 7, IDs: []uint16{8}}).Shares(hot); err != nil || s.Len() != 2 {
		t.Errorf("shares %v, %v", s, err)
	}
	if _, err := (Job{ID: 7, IDs: []uint16{8, 9}}).Shares(hot); !errors.Is(err, share.ErrConfig) {
		t.Errorf("three shares of two rows: %v", err)
	}
}
