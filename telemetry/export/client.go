// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/libra-ina/libra/control/access"
)

// Source is a process that is read.
type Source struct {
	Name string
	At   netip.AddrPort
}

// Client reads what one process shows.
type Client struct {
	Source
	http   *http.Client
	scheme string
}

// NewClient returns a client that waits for an answer for limit at most.
func NewClient(s Source, security access.Security, limit time.Duration) *Client {
	config := security.ClientTLS(s.At.Addr().String(), access.EitherService())
	c := &Client{Source: s, scheme: "http",
		http: &http.Client{Timeout: limit, Transport: &http.Transport{TLSClientConfig: config}}}
	if config != nil {
		c.scheme = "https"
	}
	return c
}

// Close ends the client's connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Get reads a path, such as /metrics, by a function. Errors name the process.
func (c *Client) Get(ctx context.Context, path string, read func(io.Reader) error) error {
	fail := func(err error) error { return fmt.Errorf("%s at %v: %w", c.Name, c.At, err) }
	url := fmt.Sprintf("%s://%v%s", c.scheme, c.At, path)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fail(err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fail(fmt.Errorf("%w: is it running, and has its cluster file the same telemetry.port and tls?", err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fail(fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(why))))
	}
	if err := read(resp.Body); err != nil {
		return fail(err)
	}
	return nil
}
