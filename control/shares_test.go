// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"strings"
	"testing"

	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/wire"
)

// What a job with several shares cannot do, and shares that no service could know, are refused.
func TestBadSharesOfAMembership(t *testing.T) {
	two := []Share{{Job: 5, HotSet: hotSet}, {Job: 6, HotSet: hotSet}}
	for want, c := range map[string]JoinConfig{
		"":                                 {Job: 5, Shares: two},
		"Shares[0].Job is 5, and Job is 4": {Job: 4, Shares: two},
		"Shares[1].Job is 5, as that of another share": {Job: 5, Shares: []Share{two[0], two[0]}},
		"Shares[2].Job is 6, as that of another share": {Job: 5, Shares: []Share{two[0], two[1], two[1]}},
		"Shares[1].HotSet is missing":                  {Job: 5, Shares: []Share{two[0], {Job: 6}}},
		"NoServer is set, and there are several":       {Job: 5, Shares: two, NoServer: true},
		"KeepsLog is set, and there are several":       {Job: 5, Shares: two, KeepsLog: true},
	} {
		if err := c.checkShares(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// A worker takes part only in the instances of the shares that its server harvests.
func TestAnswersForShares(t *testing.T) {
	cfg := JoinConfig{Job: 5, Shares: []Share{{Job: 5, HotSet: hotSet}, {Job: 6, HotSet: hotSet, Pages: 2}}}
	m := &Membership{job: 5, cfg: cfg}
	admitted := func() *pb.Admission {
		return &pb.Admission{Instance: 9, Window: wire.DefaultWindow, Pages: 2, Mode: pb.Mode_MODE_COMBINE,
			Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT}
	}
	for shares, want := range map[int]string{0: "among 1 jobs, this worker among 2", 1: "", 2: "among 3 jobs, this worker among 2"} {
		joined := &pb.Membership{Instance: 9, Shares: []uint64{11, 12}[:shares]}
		if err := m.take(joined, admitted()); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d more shares: %v, want %q", shares, err, want)
		}
	}
	joined := &pb.Membership{Instance: 9, Shares: []uint64{11}}
	if err := m.takeShare(cfg.atShare(1), 1, joined, admitted()); !errors.Is(err, errRestarted) ||
		!strings.Contains(err.Error(), "harvests instance 11 of job 6, share 1 of job 5, the aggregator has instance 9") {
		t.Errorf("another instance of a share: %v", err)
	}
	right := admitted()
	right.Instance = 11
	if err := m.takeShare(cfg.atShare(1), 1, joined, right); err != nil {
		t.Error(err)
	}
	three := &pb.Membership{Instance: 9, Shares: []uint64{12, 11}}
	if err := m.takeShare(cfg.atShare(1), 2, three, right); err != nil {
		t.Errorf("the last of three shares: %v", err)
	}
	right.Pages = 1
	if err := m.takeShare(cfg.atShare(1), 1, joined, right); err == nil || !strings.Contains(err.Error(), "hot scalars of job 6") {
		t.Errorf("an aggregator with fewer pages: %v", err)
	}
	if here := cfg.atShare(1); here.Job != 6 || here.Pages != 2 || cfg.Job != 5 {
		t.Errorf("at share 1: %+v", here)
	}
}
