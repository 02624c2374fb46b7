// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentproto"
)

// A user's sessions count against the limit of that user alone, and against that of all.
func TestSessionsAreCountedByUser(t *testing.T) {
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Users = []uint32{1, 2, 3, 4}
		c.Jobs[0].Limits = agent.Limits{Clients: 5, UserClients: 2}
	})
	admit := func(user uint32) error {
		t.Helper()
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fds[0]) })
		hello := agentproto.Hello{Oldest: 1, Newest: 1, Job: jobName, Entries: 16, BufferBytes: 4096}
		return b.agent.Admit(&unix.Ucred{Uid: user, Pid: 1}, hello, fds[1],
			func(*agentproto.Welcome, *os.File) error { return nil })
	}
	for i, user := range []uint32{1, 2, 1, 2} {
		if err := admit(user); err != nil {
			t.Fatalf("session %d, of user %d: %v", i, user, err)
		}
	}
	if err := admit(1); !errors.Is(err, agentproto.Clients) || !strings.Contains(err.Error(), "2 of user 1") {
		t.Errorf("a third session of one user: %v", err)
	}
	if err := admit(3); err != nil {
		t.Errorf("the first one of a third user: %v", err)
	}
	if err := admit(4); !errors.Is(err, agentproto.Clients) || strings.Contains(err.Error(), "of user") {
		t.Errorf("one more than all may have: %v", err)
	}
}
