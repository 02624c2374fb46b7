// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// The metrics that are summed, see docs/telemetry.md.
var counted = map[string]func(*Counts) *uint64{
	"libra_worker_settled_frames_total":  func(c *Counts) *uint64 { return &c.Settled },
	"libra_worker_repeated_frames_total": func(c *Counts) *uint64 { return &c.Retransmissions },
	"libra_job_duplicates_total":         func(c *Counts) *uint64 { return &c.Duplicates },
	"libra_server_duplicates_total":      func(c *Counts) *uint64 { return &c.Duplicates },
	"libra_server_harvests_total":        func(c *Counts) *uint64 { return &c.Harvests },
}

const (
	scrapeEvery = 500 * time.Millisecond
	scrapeLimit = time.Second
)

// counters sum what the processes of a cluster count, of whatever has happened until shortly before
// a process died.
type counters struct {
	mu   sync.Mutex
	last map[string]uint64 // by host and series
	sum  Counts
}

// watch reads the counters of all hosts until ctx ends.
func (c *counters) watch(ctx context.Context, hosts []*testbed.Node) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, h := range hosts {
		// From its own host, so that the troubles of the network do not matter. To dial an address
		// starts no goroutine, which would be in another namespace.
		dial := func(ctx context.Context, _, at string) (conn net.Conn, err error) {
			err = h.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", at)
				return err
			})
			return conn, err
		}
		client := &http.Client{Timeout: scrapeLimit,
			Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
		url := "http://" + netip.AddrPortFrom(h.IP, telemetryPort).String() + "/metrics"
		all.Go(func() {
			for ctx.Err() == nil {
				c.scrape(ctx, client, h.Name, url)
				select {
				case <-ctx.Done():
				case <-time.After(scrapeEvery):
				}
			}
		})
	}
}

// scrape reads the counters of a host. One whose process is dead or suspended has none.
func (c *counters) scrape(ctx context.Context, client *http.Client, host, url string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	c.read(resp.Body, host)
}

// read adds what series have grown by. One that is smaller has begun anew.
func (c *counters) read(r io.Reader, host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for lines := bufio.NewScanner(r); lines.Scan(); {
		series, text, _ := strings.Cut(lines.Text(), " ")
		name, _, _ := strings.Cut(series, "{")
		field := counted[name]
		value, err := strconv.ParseFloat(text, 64)
		if field == nil || err != nil {
			continue
		}
		key, now := host+" "+series, uint64(value)
		before := c.last[key]
		if now < before {
			before = 0
		}
		*field(&c.sum) += now - before
		c.last[key] = now
	}
}

// total returns the sums.
func (c *counters) total() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sum
}
