// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/internal/test/grpctest"
)

// A peer that only closes its connections may be about to start, so Dial waits for it until the
// limit. The error then names a possible disagreement on TLS, and the side that uses it.
func TestDialNamesALateTLSMismatch(t *testing.T) {
	aggregatorAt := netip.MustParseAddrPort("192.0.2.1:7700")
	a := grpctest.NewAuthority(t)
	with := security(a, "192.0.2.1", "libra://switch")
	without := security(grpctest.NewAuthority(t), "192.0.2.1", "libra://switch") // whose certificate the other refuses
	without.peers = with.peers
	for name, c := range map[string]struct {
		ours, theirs Security
		want, no     string
	}{
		"this side is plain":        {Security{}, with, "this side uses plain TCP", "certificate"},
		"this side is not accepted": {without, with, "does not accept this side's certificate", "plain TCP"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, c.theirs, func(*grpc.Server) {})
				// The limit expires while it checks the reason again.
				asked := 0
				meanwhile := grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
					if asked++; asked > 1 {
						<-ctx.Done()
					}
					return invoke(ctx, method, req, reply, cc, options...)
				})
				begin := time.Now()
				conn, err := Dial(t.Context(), TheSwitch(), aggregatorAt, c.ours, 7*time.Second, quiet, n.Dialer(), meanwhile)
				if err == nil {
					conn.Close()
				}
				if !errors.Is(err, ErrTLS) || !contains(err, "switch daemon at 192.0.2.1:7700", c.want) || contains(err, c.no) {
					t.Errorf("it fails with %v", err)
				}
				if took := time.Since(begin); took != 7*time.Second || asked != 2 {
					t.Errorf("it is given up after %v, and was asked %d times", took, asked)
				}
			})
		})
	}
	// Silence is not a disagreement, nor is the end of the caller's context.
	synctest.Test(t, func(t *testing.T) {
		silent := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		_, err := Dial(t.Context(), TheSwitch(), aggregatorAt, Security{}, 7*time.Second, quiet, silent)
		if err == nil || errors.Is(err, ErrTLS) || !contains(err, "switch daemon at 192.0.2.1:7700 did not answer within 7s") {
			t.Errorf("without an answer: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		taken := grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			return grpctest.Socket{Conn: ours}, nil
		})
		_, err := Dial(t.Context(), TheSwitch(), aggregatorAt, Security{}, 7*time.Second, quiet, taken)
		if err == nil || errors.Is(err, ErrTLS) || !contains(err, "switch daemon at 192.0.2.1:7700 did not answer within 7s") {
			t.Errorf("taken, and not answered: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, with, func(*grpc.Server) {})
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("interrupted")
		time.AfterFunc(5*time.Second, func() { cancel(why) })
		_, err := Dial(ctx, TheSwitch(), aggregatorAt, Security{}, time.Minute, quiet, n.Dialer())
		if !errors.Is(err, why) || errors.Is(err, ErrTLS) {
			t.Errorf("interrupted: %v", err)
		}
	})
	// A caller's own time limit is not the argument's.
	synctest.Test(t, func(t *testing.T) {
		silent := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := Dial(ctx, TheSwitch(), aggregatorAt, Security{}, time.Minute, quiet, silent)
		if !errors.Is(err, context.DeadlineExceeded) || contains(err, "within 1m0s") || !contains(err, "switch daemon at 192.0.2.1:7700 did not answer: ", "is it running, and is the address right?") {
			t.Errorf("the caller's deadline: %v", err)
		}
	})
}

// A caller that connects and then sends nothing delays the end of a service by seconds, not by
// gRPC's two minutes.
func TestSilentCallerDelaysNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := grpctest.NewNetwork()
		s := NewServer(Security{})
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = s.Serve(n)
		}()
		ours := must(n.Connect(t.Context(), n.Addr()))
		synctest.Wait()
		begin := time.Now()
		s.Stop()
		<-served
		if took := time.Since(begin); took > handshakeLimit {
			t.Errorf("it ends after %v", took)
		}
		ours.Close()
	})
}

// An error that breaks a connection is a disagreement on TLS only if it looks like one: the side
// that uses TLS decides which errors are possible.
func TestMismatch(t *testing.T) {
	on := security(grpctest.NewAuthority(t), "192.0.2.1")
	for _, c := range []struct {
		sec     Security
		text    string
		want    string
		certain bool
	}{
		{on, "connection error: first record does not look like a TLS handshake", "the other plain TCP", true},
		{Security{}, "connection error: first record does not look like a TLS handshake", "", false},
		{on, `connection error: "remote error: tls: bad certificate"`, "bad certificate: compare", true},
		{Security{}, `connection error: "remote error: tls: bad certificate"`, "", false},
		{on, "error reading server preface: EOF", "does not accept this side's certificate", false},
		{Security{}, "error reading server preface: EOF", "this side uses plain TCP", false},
		{on, "read: connection reset by peer", "does not accept this side's certificate", false},
		{Security{}, "read: connection reset by peer", "this side uses plain TCP", false},
		{on, "write: broken pipe", "does not accept this side's certificate", false},
		{Security{}, "write: broken pipe", "this side uses plain TCP", false},
		{on, "error reading server preface: use of closed network connection", "", false},
		{Security{}, "error reading server preface: use of closed network connection", "", false},
		{on, "connection refused", "", false},
		{Security{}, "connection refused", "", false},
	} {
		got, certain := c.sec.mismatch(status.Error(codes.Unavailable, c.text))
		if c.want == "" {
			if got != nil || certain {
				t.Errorf("TLS %v, %q: %v, certain %v", c.sec.on(), c.text, got, certain)
			}
			continue
		}
		if !errors.Is(got, ErrTLS) || !contains(got, c.want) || certain != c.certain {
			t.Errorf("TLS %v, %q: %v, certain %v; want %q", c.sec.on(), c.text, got, certain, c.want)
		}
	}
	if got, certain := on.mismatch(nil); got != nil || certain {
		t.Errorf("no error: %v", got)
	}
}

// counting is a context that counts the contexts that wait for its end.
type counting struct {
	context.Context
	waiting atomic.Int32
}

// Value hides the wrapped context's own type, so that package context calls AfterFunc.
func (c *counting) Value(any) any { return nil }

func (c *counting) AfterFunc(func()) (stop func() bool) {
	c.waiting.Add(1)
	var stopped atomic.Bool
	return func() bool {
		first := stopped.CompareAndSwap(false, true)
		if first {
			c.waiting.Add(-1)
		}
		return first
	}
}

// A service that answered leaves nothing that waits for the end of its caller, and neither does one
// that did not, in a process that continues.
func TestDialLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, Security{}, func(*grpc.Server) {})
		silent := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		for i, dialer := range []grpc.DialOption{n.Dialer(), silent} {
			c := &counting{Context: t.Context()}
			conn, err := Dial(c, TheSwitch(), netip.MustParseAddrPort("192.0.2.1:7700"), Security{}, time.Minute, quiet, dialer)
			if (err == nil) != (i == 0) {
				t.Errorf("dialer %d: %v", i, err)
			}
			if err == nil {
				conn.Close()
			}
			if n := c.waiting.Load(); n != 0 {
				t.Errorf("dialer %d: %d contexts still wait for the caller's end", i, n)
			}
		}
	})
}
