// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// The URIs of a certificate name the roles of its holder:
//
//	libra://switch           an aggregator
//	libra://server/JOB       the parameter server of a job
//	libra://worker/JOB       any worker of a job
//	libra://worker/JOB/ID    one worker
//	libra://operator         a person who may remove and move jobs
//
// JOB may be *, for all jobs.
const (
	roleSwitch   = "switch"
	roleServer   = "server"
	roleWorker   = "worker"
	roleOperator = "operator"
)

// Caller identifies the peer that makes a call.
type Caller struct {
	secured bool       // by mutual TLS
	names   []*url.URL // of its certificate
	ips     []net.IP   // of its certificate
	local   netip.AddrPort

	// Remote is where the call comes from; zero within the process.
	Remote netip.AddrPort
}

// CallerOf returns the caller of a context. A call without a network connection comes from this
// process.
func CallerOf(ctx context.Context) (c Caller) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return c
	}
	c.Remote, c.local = addrPort(p.Addr), addrPort(p.LocalAddr)
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		c.secured = true
		if chain := info.State.PeerCertificates; len(chain) > 0 {
			c.names, c.ips = chain[0].URIs, chain[0].IPAddresses
		}
	}
	return c
}

// CallerOfRequest returns the caller of a request over HTTP.
func CallerOfRequest(r *http.Request) (c Caller) {
	c.Remote, _ = netip.ParseAddrPort(r.RemoteAddr)
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		c.local = addrPort(local)
	}
	if r.TLS != nil {
		c.secured = true
		if chain := r.TLS.PeerCertificates; len(chain) > 0 {
			c.names, c.ips = chain[0].URIs, chain[0].IPAddresses
		}
	}
	return c
}

func addrPort(a net.Addr) netip.AddrPort {
	if tcp, ok := a.(*net.TCPAddr); ok {
		ap := tcp.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// onThisHost reports whether the call comes from the service's host.
func (c Caller) onThisHost() bool {
	return c.Remote.Addr() == c.local.Addr() || c.Remote.Addr().IsLoopback()
}

// is reports whether the certificate names a role, with a matching path: the job and, for workers,
// the number.
func (c Caller) is(role string, want ...uint32) bool {
	return slices.ContainsFunc(c.names, func(u *url.URL) bool { return names(u, role, want) })
}

// names reports whether a URI gives its holder a role.
func names(u *url.URL, role string, want []uint32) bool {
	if u.Scheme != "libra" || u.Host != role {
		return false
	}
	var parts []string
	if p := strings.Trim(u.Path, "/"); p != "" {
		parts = strings.Split(p, "/")
	}
	fits := len(parts) == len(want)
	if role == roleWorker {
		// The number is optional, both in a certificate for all workers of a job and in a check for
		// any of them.
		fits = len(parts) == 1 || len(parts) == 2
	}
	if !fits {
		return false
	}
	for i, part := range parts[:min(len(parts), len(want))] {
		if part != strconv.FormatUint(uint64(want[i]), 10) && !(i == 0 && part == "*") {
			return false
		}
	}
	return true
}

// NeedServer refuses a caller that is not the parameter server of a job.
func (c Caller) NeedServer(job uint32) error { return c.need(roleServer, job) }

// NeedHarvester refuses a caller that is neither the parameter server of a job nor a switch, which
// may harvest it for that.
func (c Caller) NeedHarvester(job uint32) error {
	if c.is(roleSwitch) {
		return nil
	}
	return c.NeedServer(job)
}

// NeedWorker refuses a caller that is not a worker of a job.
func (c Caller) NeedWorker(job, worker uint32) error { return c.need(roleWorker, job, worker) }

// need refuses a caller without a role. Over plain TCP every caller has all roles.
func (c Caller) need(role string, want ...uint32) error {
	if !c.secured || c.is(role, want...) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied,
		"this call needs a certificate for %s; the certificate is for %v (its URI names)", uri(role, want), c.names)
}

// uri returns the URI of a role in a certificate.
func uri(role string, path []uint32) string {
	s := "libra://" + role
	for _, n := range path {
		s += fmt.Sprintf("/%d", n)
	}
	return s
}

// NeedOperator refuses a caller that is not an operator. Over plain TCP, callers on this host are
// operators.
func (c Caller) NeedOperator() error {
	switch {
	case c.secured && !c.is(roleOperator) && !c.is(roleSwitch):
		return c.need(roleOperator)
	case !c.secured && !c.onThisHost():
		return status.Errorf(codes.PermissionDenied,
			"without the job key or TLS, allowed only from the service's own host, not from %v", c.Remote.Addr())
	}
	return nil
}

// SeesAll returns why the caller may not read the statistics of all jobs, or nil: with TLS it needs
// the certificate of an operator or a switch.
func (c Caller) SeesAll() error {
	if c.is(roleSwitch) {
		return nil
	}
	return c.need(roleOperator)
}

// Sees reports whether the caller may read a job's statistics.
func (c Caller) Sees(job uint32) bool {
	return !c.secured || c.is(roleSwitch) || c.is(roleOperator) || c.is(roleServer, job) || c.is(roleWorker, job)
}

// NeedAddress refuses a worker that claims an address which its certificate does not name.
func (c Caller) NeedAddress(ip netip.Addr) error {
	if !c.secured || slices.ContainsFunc(c.ips, func(own net.IP) bool { return own.Equal(ip.AsSlice()) }) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "address %v is not in the certificate, which lists %v", ip, c.ips)
}
