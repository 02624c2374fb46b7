// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent/agentproto"
)

// A client that arrives while its job ends is told so, and not welcomed.
func TestEndedJobAdmitsNoClient(t *testing.T) {
	j := &job{cfg: Job{Limits: Limits{Clients: 1, UserClients: 1}}, gone: departed{of: map[uint32]int{}}, ended: agentproto.AgentClosed}
	err := j.admitSession(&session{who: &unix.Ucred{}, socket: -1}, func(uint64) error {
		t.Error("it is welcome")
		return nil
	})
	if !errors.Is(err, agentproto.AgentClosed) {
		t.Errorf("it is told %v", err)
	}
}

// Ended sessions that hold memory count against the job's limit, and those of a user against that
// user's.
func TestRoomBesideDepartedSessions(t *testing.T) {
	d := departed{of: map[uint32]int{}}
	d.addUser(1, 1)
	d.addUser(2, 1)
	d.addUser(2, 1)
	if all, own := d.countUser(2); all != 3 || own != 2 {
		t.Errorf("%d in all and %d of the user are counted, want 3 and 2", all, own)
	}
	d.addUser(2, -1)
	d.addUser(2, -1)
	if all, own := d.countUser(2); all != 1 || own != 0 || len(d.of) != 1 {
		t.Errorf("%d in all and %d of the user are left, want 1 and 0: %v", all, own, d.of)
	}
}
