// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
)

// Who waits long for a service says so once. A server that looks for an aggregator, each second
// anew, does not fill its log.
func TestWaitingIsSaidOnce(t *testing.T) {
	for limit, want := range map[time.Duration]int{noticeAfter: 0, time.Millisecond: 0, noticeAfter + time.Millisecond: 1, time.Minute: 1} {
		synctest.Test(t, func(t *testing.T) {
			var text strings.Builder
			nobody := grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody is there") })
			_, err := Dial(t.Context(), TheSwitch(), netip.MustParseAddrPort("10.0.0.9:7700"), Security{}, limit,
				slog.New(slog.NewTextHandler(&text, nil)), nobody)
			if err == nil || !strings.Contains(err.Error(), "did not answer within "+limit.String()) {
				t.Error(err)
			}
			synctest.Wait() // for who logs
			if got := strings.Count(text.String(), "waiting for the switch daemon"); got != want {
				t.Errorf("%v: %q", limit, &text)
			}
		})
	}
}
