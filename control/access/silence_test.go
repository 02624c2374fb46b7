// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials/insecure"
)

// No end of a connection gives up while its link may be down, and each does so before the other has
// ended what belongs to the connection, a grace period later.
func TestLimitsOfBothEnds(t *testing.T) {
	const grace = 3 * time.Second // control.DefaultGrace
	// What one end has heard last may have left pingEvery before the link went down, and a call of
	// the client in between delays the next.
	first := min(pingTimeout, silentAfter-pingEvery-pingEvery/2, handshakeLimit) // a connection may not be set up yet
	last := max(pingEvery+pingTimeout, silentAfter)
	if first < Outage {
		t.Errorf("an end gives a connection up %v after the link went down, which may last %v", first, Outage)
	}
	if last >= first+grace {
		t.Errorf("one end gives a connection up after %v, and the other ends an admission %v after %v", last, grace, first)
	}
}

// A client closes a connection on which nothing comes, and says why; one on which something comes
// stays. What it sends itself, for example questions to a machine that is gone, makes no
// difference.
func TestSilentServiceIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		conn, _, err := watchful{insecure.NewCredentials()}.Clone().ClientHandshake(context.Background(), "there", here)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for range 3 {
				time.Sleep(silentAfter - time.Millisecond)
				_, _ = there.Write([]byte{1})
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		var asking sync.WaitGroup
		defer asking.Wait()
		asking.Go(func() {
			var err error
			for begun := time.Now(); err == nil && time.Since(begun) < 6*silentAfter; {
				_, err = conn.Write([]byte{1})
				time.Sleep(pingEvery)
			}
		})
		begun, b := time.Now(), make([]byte, 1)
		for range 3 {
			if _, err := conn.Read(b); err != nil {
				t.Fatal(err)
			}
		}
		_, err = conn.Read(b)
		if err == nil || !strings.Contains(err.Error(), "nothing has come from the service for 12s: ") {
			t.Errorf("the last read: %v", err)
		}
		if took, want := time.Since(begun), 3*(silentAfter-time.Millisecond)+silentAfter; took != want {
			t.Errorf("given up after %v, want %v", took, want)
		}
	})
}

// A connection that is closed is not closed again.
func TestClosedConnectionIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		w := watch(here)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * silentAfter)
		if w.silent.Load() {
			t.Error("it was found silent")
		}
	})
}
