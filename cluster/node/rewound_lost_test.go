// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/libra-ina/libra/control"
)

// A job that has rewound when its server hears that the switch no longer knows the job goes on
// there, as after any other rewind, and not without an aggregator.
func TestRewoundJobHasLostItsSwitch(t *testing.T) {
	s := newServer(t, true)
	defer runSwitchOn(t, s.env.Config, testLog(t), Machine{})()
	limited, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ctx, end := context.WithCancelCause(limited)
	defer end(nil)
	var err error
	if s.hot, err = loadHotSet(s.env.Config, 1+s.env.Config.Model.Factors); err != nil {
		t.Fatal(err)
	}
	if err := s.openFirst(ctx); err != nil {
		t.Fatal(err)
	}
	s.service = control.NewParameterServer(ctx, control.ParameterServerConfig{Job: s.job.ID, Instance: s.job.Instance,
		KeepLog: true, Sync: true, Workers: []uint16{1}, Members: s.loop, Port: s.env.Config.Port, Log: s.env.Log})
	s.newHarvests(ctx)
	lost := s.generation.Load()
	if err := s.rewindStep(ctx); err != nil {
		t.Fatal(err)
	}
	if !s.leaveAggregator(ctx, end, lost, nil, errors.New("no such job")) {
		t.Fatal("the server watches no aggregator any more")
	}
	now := s.generation.Load()
	if now == lost || now.isFenced() || now.job.Instance == lost.job.Instance || !s.takesHarvests(now) {
		t.Errorf("the generation is %+v", now)
	}
	end(nil)
	s.discardGeneration(now)
}
