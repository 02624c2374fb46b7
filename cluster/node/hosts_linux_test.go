// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"slices"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
)

// A host is followed exactly as long as a job has a server or a sender on it.
func TestHostsAreFollowed(t *testing.T) {
	model, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	var followed []byte // the last byte of each host's address
	h := newHosts(model, func(mac [6]byte) func() {
		followed = append(followed, mac[5])
		return func() {
			i := slices.Index(followed, mac[5])
			if i < 0 {
				t.Fatalf("host %d is released, and is not followed", mac[5])
			}
			followed = slices.Delete(followed, i, i+1)
		}
	})
	sender := func(id uint16, host byte) aggregator.SenderConfig {
		return aggregator.SenderConfig{ID: id, MAC: [6]byte{2, 0, 0, 0, 0, host}, IP: conformance.Host(int(host)).IP, Port: 5000}
	}
	servers := func(hosts ...byte) (macs [][6]byte) {
		for _, host := range hosts {
			macs = append(macs, [6]byte{2, 0, 0, 0, 0, host})
		}
		return macs
	}
	step := func(what string, err error, want ...byte) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if slices.Sort(followed); !slices.Equal(followed, want) {
			t.Errorf("%s: hosts %d are followed, want %d", what, followed, want)
		}
	}
	h.setServers(1, servers(9))
	step("a job that is not there", nil)
	step("a job", h.AddJob(aggregator.JobConfig{ID: 1, Slots: 10}))
	h.setServers(1, servers(9))
	step("its server", nil, 9)
	h.setServers(1, servers(9, 7, 4))
	step("its three servers", nil, 4, 7, 9)
	h.setServers(1, servers(8))
	step("its server on another host", nil, 8)
	step("a sender", h.AddSender(1, sender(3, 5)), 5, 8)
	step("a second", h.AddSender(1, sender(4, 6)), 5, 6, 8)
	if err := h.AddSender(1, sender(3, 7)); !errors.Is(err, aggregator.ErrSenderExists) {
		t.Errorf("a sender that is there: %v", err)
	}
	step("a sender that is there", nil, 5, 6, 8)
	step("its end", h.RemoveSender(1, 3), 6, 8)
	if err := h.RemoveSender(1, 3); !errors.Is(err, aggregator.ErrNoSender) {
		t.Errorf("a sender that is not there: %v", err)
	}
	step("another job", h.AddJob(aggregator.JobConfig{ID: 2, Slots: 10}), 6, 8)
	step("with a sender", h.AddSender(2, sender(4, 6)), 6, 6, 8)
	step("the end of the first job", h.RemoveJob(1), 6)
	if err := h.RemoveJob(1); !errors.Is(err, aggregator.ErrNoJob) {
		t.Errorf("a job that is not there: %v", err)
	}
	h.setServers(1, servers(9))
	step("its server afterwards", nil, 6)

	// What the plane refuses is not followed.
	if err := h.AddJob(aggregator.JobConfig{ID: 2, Slots: 10}); !errors.Is(err, aggregator.ErrJobExists) {
		t.Errorf("a job that exists: %v", err)
	}
	step("a job that exists", nil, 6)
	if err := h.AddSender(1, sender(3, 5)); !errors.Is(err, aggregator.ErrNoJob) {
		t.Errorf("a sender of no job: %v", err)
	}
	step("a sender of no job", nil, 6)
	step("the end of the second job", h.RemoveJob(2))
}
