// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/wire"
)

// What a job with several shares cannot do, and shares that no service could know, are refused.
func TestBadSharesOfAMembership(t *testing.T) {
	noPlan := func(*pb.Plan) ([]Share, error) { return nil, nil }
	if err := (&JoinConfig{Job: 5, Aggregator: control1, Shares: []Share{{Job: 5, HotSet: hotSet},
		{Job: 5, HotSet: hotSet, At: control2}}}).checkShares(); err != nil {
		t.Errorf("the same number at two aggregators: %v", err)
	}
	two := []Share{{Job: 5, HotSet: hotSet}, {Job: 6, HotSet: hotSet}}
	for want, c := range map[string]JoinConfig{
		"":                                 {Job: 5, Shares: two},
		"Shares[0].Job is 5, and Job is 4": {Job: 4, Shares: two},
		"Shares[1].Job is 5, as that of another share": {Job: 5, Shares: []Share{two[0], two[0]}},
		"Shares[2].Job is 6, as that of another share": {Job: 5, Shares: []Share{two[0], two[1], two[1]}},
		"Shares[1].HotSet is missing":                  {Job: 5, Shares: []Share{two[0], {Job: 6}}},
		"NoServer is set, and there are several":       {Job: 5, Shares: two, NoServer: true},
		"KeepsLog is set, and there are several":       {Job: 5, Shares: two, KeepsLog: true},
		"Plan is set, and so are Shares":               {Job: 5, Shares: two, Plan: noPlan},
		"NoServer is set, and there are":               {Job: 5, Plan: noPlan, NoServer: true},
		"KeepsLog is set, and there are":               {Job: 5, Plan: noPlan, KeepsLog: true},
	} {
		if err := c.checkShares(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// A worker follows the plan of its server, if its configuration wants one, and joins where that
// says.
func TestPlanOfAServer(t *testing.T) {
	for name, one := range map[string]struct {
		plan   *pb.Plan
		shares []Share
		err    error
		want   string
	}{
		"none":       {want: "the parameter server of job 5 has no plan of its hot set: run the same version"},
		"refused":    {plan: &pb.Plan{}, err: errors.New("an unknown switch"), want: "an unknown switch"},
		"no shares":  {plan: &pb.Plan{}, want: "the plan has no shares"},
		"twice":      {plan: &pb.Plan{}, shares: []Share{{Job: 5, At: control1, HotSet: hotSet}, {Job: 5, At: control1, HotSet: hotSet}}, want: "Shares[1].Job is 5, as that of another"},
		"two places": {plan: &pb.Plan{PartRows: 7}, shares: []Share{{Job: 5, At: control2, HotSet: hotSet}, {Job: 5, At: control1, HotSet: hotSet}}},
	} {
		var got *pb.Plan
		cfg := JoinConfig{Job: 5, Aggregator: control1, Limit: time.Minute,
			Plan: func(p *pb.Plan) ([]Share, error) { got = p; return one.shares, one.err }}
		m := &Membership{job: 5, cfg: cfg, servers: []joinedServer{{ParameterServerClient: planning{plan: one.plan}, role: "parameter server"}}}
		err := m.takePlan(t.Context(), &cfg)
		if one.want != "" && (err == nil || !strings.Contains(err.Error(), one.want)) || one.want == "" && err != nil {
			t.Errorf("%s: %v, want %q", name, err, one.want)
		}
		if one.want == "" && (got.GetPartRows() != 7 || cfg.Aggregator != control2 || m.cfg.Aggregator != control2 || len(m.cfg.Shares) != 2) {
			t.Errorf("%s: plan %v leads to %+v", name, got, cfg)
		}
	}
}

var control1, control2 = netip.MustParseAddrPort("10.0.0.1:7700"), netip.MustParseAddrPort("10.0.0.2:7700")

// planning is a server that has a plan.
type planning struct {
	pb.ParameterServerClient
	plan *pb.Plan
}

func (p planning) Check(context.Context, *pb.JoinRequest, ...grpc.CallOption) (*pb.Membership, error) {
	return &pb.Membership{Plan: p.plan}, nil
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
	right.Stripes, right.Dense = 4, false
	m.Stripes, m.Dense = 10, true
	if err := m.takeShare(cfg.atShare(1), 1, joined, right); err != nil || m.Stripes != 4 || m.Dense {
		t.Errorf("frames of %d stripes, dense %v, not those that both aggregators take (%v)", m.Stripes, m.Dense, err)
	}
	right.Pages = 1
	if err := m.takeShare(cfg.atShare(1), 1, joined, right); err == nil || !strings.Contains(err.Error(), "hot scalars of job 6") {
		t.Errorf("an aggregator with fewer pages: %v", err)
	}
	if here := cfg.atShare(1); here.Job != 6 || here.Pages != 2 || cfg.Job != 5 {
		t.Errorf("at share 1: %+v", here)
	}
}
