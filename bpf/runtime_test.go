// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
)

func TestRunTimeGrowsWithFrames(t *testing.T) {
	d := open(t)
	statistics, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Fatal(err)
	}
	defer statistics.Close()
	before, err := d.RunTime()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Process(make([]byte, 64), nil); err != nil {
		t.Fatal(err)
	}
	if after, err := d.RunTime(); err != nil || after <= before {
		t.Errorf("run time %v after a frame, %v before, %v", after, before, err)
	}
	if err := d.Aggregator.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.RunTime(); !errors.Is(err, aggregator.ErrClosed) {
		t.Errorf("run time after closing: %v", err)
	}
}
