// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/internal/test/grpctest"
	"github.com/libra-ina/libra/internal/test/testlog"
	"github.com/libra-ina/libra/telemetry"
)

// start shows a process with the values on a free port.
func start(t *testing.T, cfg Config) (e *Exporter, url string) {
	t.Helper()
	if !cfg.At.IsValid() {
		cfg.At = freePort(t)
	}
	if cfg.Log == nil {
		cfg.Log = quiet
	}
	if cfg.Collect == nil {
		cfg.Collect = func(s *Set) time.Duration { everything(s); return 0 }
	}
	e = Start(cfg)
	t.Cleanup(e.Close)
	for {
		conn, err := net.Dial("tcp", cfg.At.String())
		if err == nil {
			conn.Close()
			return e, cfg.At.String()
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

func freePort(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func get(t *testing.T, client *http.Client, url string) (status int, body string) {
	t.Helper()
	r, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// TestScrape asks a process for its metrics, as text.
func TestScrape(t *testing.T) {
	_, at := start(t, Config{})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	status, body := get(t, client, "http://"+at+"/metrics")
	if status != http.StatusOK || !strings.Contains(body, `libra_server_rows{job="1"} 5`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := get(t, client, "http://"+at+"/records"); status != http.StatusNotFound || !strings.Contains(body, "switch") {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := get(t, client, "http://"+at+"/"); status != http.StatusNotFound {
		t.Errorf("%d", status)
	}
}

// With TLS, operators and switches may read; others are refused, and connections without a
// certificate too.
func TestOnlyOperatorsMayRead(t *testing.T) {
	a := grpctest.NewAuthority(t)
	security := func(names ...string) access.Security {
		s, err := access.LoadSecurity(a.Files(names...))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	e, at := start(t, Config{Security: security("127.0.0.1", "libra://server/1"), Side: ServerSide,
		Recorders: func() []*telemetry.Recorder { return nil }})
	for role, want := range map[string]int{
		"libra://operator": http.StatusOK, "libra://switch": http.StatusOK, "libra://worker/1/2": http.StatusForbidden,
		"libra://server/1": http.StatusForbidden,
	} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: security(role).ClientTLS("127.0.0.1", access.EitherService())}}
		for _, path := range []string{"/metrics", "/records"} {
			if status, body := get(t, client, "https://"+at+path); status != want {
				t.Errorf("%s gets %d from %s: %s", role, status, path, body)
			}
		}
		client.CloseIdleConnections()
	}
	if n := e.refused.Load(); n != 4 {
		t.Errorf("%d refusals are counted", n)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	if r, err := client.Get("https://" + at + "/metrics"); err == nil {
		r.Body.Close()
		t.Error("a caller without a certificate gets an answer")
	}
}

// A port that is taken is named in the log, and used when it is free.
func TestPortIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var log testlog.Log
	e := Start(Config{At: l.Addr().(*net.TCPAddr).AddrPort(), Log: log.Logger(), RetryEvery: time.Millisecond,
		Collect: func(s *Set) time.Duration { return 0 }})
	defer e.Close()
	log.Await(t, "telemetry is not shown until")
	l.Close()
	log.Await(t, "telemetry is shown")
	if status, _ := get(t, http.DefaultClient, "http://"+l.Addr().String()+"/metrics"); status != http.StatusOK {
		t.Errorf("%d", status)
	}
	http.DefaultClient.CloseIdleConnections()
}

// A scraper that does not read keeps nobody from scraping, and the end of the process does not wait
// for it. Scrapes come one at a time.
func TestSlowScrapersHoldNobody(t *testing.T) {
	var busy sync.Mutex
	_, at := start(t, Config{Collect: func(s *Set) time.Duration {
		if !busy.TryLock() {
			t.Error("two scrapes at a time")
			return 0
		}
		defer busy.Unlock()
		everything(s)
		return 0
	}})
	for range 2 {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			if status, _ := get(t, client, "http://"+at+"/metrics"); status != http.StatusOK {
				t.Errorf("%d", status)
			}
		})
	}
	all.Wait()
}

// When all places are taken, a request is refused and counted.
func TestRequestsAreBounded(t *testing.T) {
	e, at := start(t, Config{})
	for range maxRequests {
		e.open <- struct{}{}
	}
	status, body := get(t, http.DefaultClient, "http://"+at+"/metrics")
	if status != http.StatusServiceUnavailable || e.refused.Load() != 1 {
		t.Errorf("%d %s, %d counted", status, body, e.refused.Load())
	}
	for range maxRequests {
		<-e.open
	}
	http.DefaultClient.CloseIdleConnections()
}

// A process whose loop has stopped is still scraped; its counters are those of before, and their
// age shows it.
func TestStoppedLoop(t *testing.T) {
	var w Watch[int]
	if _, _, ok := w.Latest(); ok {
		t.Error("a value before any")
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{})
	n := 0
	var running sync.WaitGroup
	running.Go(func() {
		w.Run(ctx, func(ctx context.Context) (int, error) {
			n++
			switch n {
			case 1:
				return 5, nil
			case 2:
				close(asked)
			}
			<-ctx.Done() // the loop does not answer
			return 0, ctx.Err()
		})
	})
	<-asked
	first, age, ok := w.Latest()
	if first != 5 || !ok {
		t.Errorf("%d, %v", first, ok)
	}
	for {
		if v, older, _ := w.Latest(); v == 5 && older > age {
			break
		}
	}
	cancel()
	running.Wait()
}
