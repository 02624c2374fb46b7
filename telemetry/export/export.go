// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/telemetry"
)

// Config describes what a process shows.
type Config struct {
	// At is where it listens.
	At netip.AddrPort
	// Security is that of the process's control connections.
	Security access.Security
	Log      *slog.Logger
	// Process names the process to readers of its records, Side says which ends of frames they are of.
	// A switch has none, and an empty Side.
	Process string
	Side    Side
	Sample  int
	// Collect adds the values of the process to a scrape. It does not wait for anything. If the values
	// are not from now, it returns their age.
	Collect func(*Set) (age time.Duration)
	// Watch, if not nil, runs beside the exporter until its end: a [Watch].
	Watch func(context.Context)
	// Recorders returns the recorders whose records it shows.
	Recorders func() []*telemetry.Recorder
	// RetryEvery is the time after which it tries again to listen; 0 means five seconds.
	RetryEvery time.Duration
}

const (
	// readLimit and writeLimit bound a request and its response: a slow reader is given up.
	readLimit  = 5 * time.Second
	writeLimit = 10 * time.Second
	// maxRequests may be open at once.
	maxRequests = 8
	maxHeader   = 16 << 10
	retryEvery  = 5 * time.Second
)

// Exporter is what shows a process.
type Exporter struct {
	cfg     Config
	started time.Time
	cancel  context.CancelFunc
	running sync.WaitGroup

	open     chan struct{} // holds a token for each request that is open
	scraping sync.Mutex    // one at a time
	limits   *limits

	refused, broken, torn atomic.Uint64
}

// Start begins to listen. If it cannot, it logs that and tries again: a process does not end
// because its telemetry cannot be read.
func Start(cfg Config) *Exporter {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Exporter{cfg: cfg, started: time.Now(), cancel: cancel, open: make(chan struct{}, maxRequests),
		limits: newLimits()}
	e.running.Go(func() { e.listen(ctx) })
	if cfg.Watch != nil {
		e.running.Go(func() { cfg.Watch(ctx) })
	}
	return e
}

// Close ends the exporter, with all its connections. A nil exporter shows nothing.
func (e *Exporter) Close() {
	if e == nil {
		return
	}
	e.cancel()
	e.running.Wait()
}

// listen serves until ctx ends.
func (e *Exporter) listen(ctx context.Context) {
	every := e.cfg.RetryEvery
	if every == 0 {
		every = retryEvery
	}
	for told := false; ctx.Err() == nil; {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", e.cfg.At.String())
		if err == nil {
			e.serve(ctx, l)
			return
		}
		if !told && ctx.Err() == nil {
			told = true
			e.cfg.Log.Warn("telemetry is not shown until this address and port are free; everything else goes on",
				"error", err, "field", "telemetry.port", "address", e.cfg.At)
		}
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
}

func (e *Exporter) serve(ctx context.Context, l net.Listener) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.guard(e.serveMetrics))
	mux.HandleFunc("GET /records", e.guard(e.serveRecords))
	server := &http.Server{
		Handler: mux, TLSConfig: e.cfg.Security.ServerTLS(), MaxHeaderBytes: maxHeader,
		ReadTimeout: readLimit, WriteTimeout: readLimit + writeLimit, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(e.cfg.Log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	e.cfg.Log.Info("telemetry is shown", "address", e.cfg.At, "paths", "/metrics, /records")
	serve := func() error { return server.Serve(l) }
	if server.TLSConfig != nil {
		serve = func() error { return server.ServeTLS(l, "", "") }
	}
	if err := serve(); !errors.Is(err, http.ErrServerClosed) {
		e.cfg.Log.Warn("telemetry is not shown any more; everything else goes on", "error", err, "address", e.cfg.At)
	}
	// Those that are open end now; each holds a place.
	for range maxRequests {
		e.open <- struct{}{}
	}
}

// guard admits a caller to a handler, which writes its response into a buffer, so that a slow
// reader holds nothing but its connection.
func (e *Exporter) guard(serve func(w http.ResponseWriter, r *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case e.open <- struct{}{}:
			defer func() { <-e.open }()
		default:
			e.refused.Add(1)
			http.Error(w, fmt.Sprintf("%d requests are open already: ask again later, and less often", maxRequests),
				http.StatusServiceUnavailable)
			return
		}
		if err := access.CallerOfRequest(r).SeesAll(); err != nil {
			e.refused.Add(1)
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		b := buffered{ResponseWriter: w, status: http.StatusOK}
		serve(&b, r)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeLimit))
		w.Header().Set("Content-Length", strconv.Itoa(b.body.Len()))
		w.WriteHeader(b.status)
		if r.Method == http.MethodHead {
			return
		}
		_, err := w.Write(b.body.Bytes())
		if err == nil {
			err = http.NewResponseController(w).Flush()
		}
		if err != nil {
			e.broken.Add(1)
		}
	}
}

// buffered keeps a response.
type buffered struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (b *buffered) WriteHeader(status int)      { b.status = status }
func (b *buffered) Write(p []byte) (int, error) { return b.body.Write(p) }

func (e *Exporter) serveMetrics(w http.ResponseWriter, r *http.Request) {
	e.scraping.Lock()
	defer e.scraping.Unlock()
	registry := prometheus.NewRegistry()
	if err := registry.Register(e.collect()); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError,
		ErrorLog: slog.NewLogLogger(e.cfg.Log.Handler(), slog.LevelWarn)}).ServeHTTP(w, r)
}

func (e *Exporter) unusedStamps() (n uint64) {
	if e.cfg.Recorders == nil {
		return 0 // a switch
	}
	for _, r := range e.cfg.Recorders() {
		n += r.UnusedStamps()
	}
	return n
}

// collect returns the series of a scrape.
func (e *Exporter) collect() (all collected) {
	own, s := newSet(nil), newSet(e.limits)
	age := e.cfg.Collect(s)
	e.limits.endScrape()
	own.add(sampleSize, float64(e.cfg.Sample))
	own.add(countersAge, age.Seconds())
	own.add(stampsUnused, float64(e.unusedStamps()))
	own.add(scrapesRefused, float64(e.refused.Load()))
	own.add(scrapesBroken, float64(e.broken.Load()))
	own.add(recordsTorn, float64(e.torn.Load()))
	show := func(entry *entry) {
		m, err := entry.metric(e.started)
		if err != nil {
			m = prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		}
		all = append(all, m)
	}
	size, left := 1, 0 // the one of seriesLeft
	for _, entry := range slices.Concat(own.order, s.order) {
		if size+entry.size() > maxSeries {
			left += entry.size()
			continue
		}
		size += entry.size()
		show(entry)
	}
	show(&entry{family: seriesLeft, name: seriesLeft.Name, value: float64(left)})
	return all
}

// collected are metrics that are collected already.
type collected []prometheus.Metric

// Describe implements [prometheus.Collector]: the series are not known in advance.
func (collected) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c collected) Collect(to chan<- prometheus.Metric) {
	for _, m := range c {
		to <- m
	}
}
