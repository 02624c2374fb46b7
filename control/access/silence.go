// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// A link may be down for any time below Outage, in one direction or both: no admission, job or
// process ends because of that, whichever end of a connection notices first. For that, neither end
// gives a silent connection up before Outage has passed since its peer could last be heard, and
// both do so soon after: then the link is up again, and the client connects anew, within the grace
// period that the service begins only then.
//
//   - A service asks after a silent client every pingEvery, and closes the connection when nothing
//     has come for pingEvery + pingTimeout, which is also how long the kernel repeats what is not
//     acknowledged (TCP_USER_TIMEOUT). So it notices 11 to 12 seconds after the link went down.
//   - A client hears a service at least every pingEvery, and closes the connection when nothing has
//     come for silentAfter: 10.5 to 12 seconds after the link went down. gRPC's own keep-alive of
//     clients is too slow for that: its first question comes after ten seconds of silence.
//   - The kernel repeats every second what a link has lost (repeatSoon). Otherwise it doubles the
//     time, and would be silent for up to six seconds after the link is up again.
const (
	// Outage is how long a link may be down without ending anything.
	Outage = 10 * time.Second

	pingEvery   = time.Second
	pingTimeout = 11 * time.Second
	silentAfter = 12 * time.Second
	// clientPings is the shortest time that gRPC accepts.
	clientPings = 10 * time.Second
	// longestRepeat is the longest time between two attempts of the kernel to send something.
	longestRepeat = time.Second
)

// watchful are credentials whose connections are set up for outages.
type watchful struct {
	credentials.TransportCredentials
}

func (w watchful) Clone() credentials.TransportCredentials {
	return watchful{w.TransportCredentials.Clone()}
}

func (w watchful) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	repeatSoon(raw)
	return w.TransportCredentials.ServerHandshake(raw)
}

func (w watchful) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	repeatSoon(raw)
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	return watch(conn), info, nil
}

// watched is a client's connection, which is closed when the service is silent.
type watched struct {
	net.Conn
	limit  *time.Timer
	silent atomic.Bool
}

func watch(conn net.Conn) *watched {
	w := &watched{Conn: conn}
	w.limit = time.AfterFunc(silentAfter, func() {
		w.silent.Store(true)
		_ = w.Conn.Close()
	})
	return w
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	switch {
	case err == nil:
		w.limit.Reset(silentAfter)
	case w.silent.Load():
		err = fmt.Errorf("nothing has come from the service for %v: %w", silentAfter, err)
	}
	return n, err
}

func (w *watched) Close() error {
	w.limit.Stop()
	return w.Conn.Close()
}
