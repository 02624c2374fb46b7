package link

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Backend is a kind of link.
type Backend uint8

const (
	// BackendAuto takes AF_XDP if it can be had, else UDP.
	BackendAuto Backend = iota
	// BackendAFXDP are AF_XDP sockets.
	BackendAFXDP
	// BackendUDP is a kernel UDP socket.
	BackendUDP
)

var backendNames = [...]string{BackendAuto: "auto", BackendAFXDP: "afxdp", BackendUDP: "udp"}

func (b Backend) String() string {
	if int(b) < len(backendNames) {
		return backendNames[b]
	}
	return fmt.Sprintf("Backend(%d)", uint8(b))
}

// ParseBackend returns the backend of a name: auto, afxdp or udp.
func ParseBackend(name string) (Backend, error) {
	for b, n := range backendNames {
		if n == name {
			return Backend(b), nil
		}
	}
	return 0, fmt.Errorf("%w: backend %q is none of auto, afxdp, udp", ErrConfig, name)
}

// Config describes a link of either kind.
type Config struct {
	Backend Backend
	// Local is the address and port that the link is reached at.
	Local netip.AddrPort
	// Interface, Queue and Spin are those of [AFXDPConfig]. Without an
	// interface, BackendAuto takes UDP.
	Interface string
	Queue     int
	Spin      time.Duration
}

// Choice says which backend a link uses, and why.
type Choice struct {
	Backend Backend
	Reason  string
}

func (c Choice) String() string { return fmt.Sprintf("%v: %s", c.Backend, c.Reason) }

// Open opens a link and says which backend it uses. Where BackendAuto falls
// back to UDP, the reason says what AF_XDP lacked: a privilege, the interface,
// or a kernel feature. A wrong configuration is an error, not a reason to fall
// back.
func Open(cfg Config) (Link, Choice, error) {
	reason := "as configured"
	switch {
	case cfg.Backend == BackendAuto && cfg.Interface == "":
		reason = "no interface is configured for afxdp"
	case cfg.Backend == BackendAuto || cfg.Backend == BackendAFXDP:
		l, err := OpenAFXDP(AFXDPConfig{Interface: cfg.Interface, Local: cfg.Local, Queue: cfg.Queue, Spin: cfg.Spin})
		if err == nil && cfg.Backend == BackendAuto {
			reason = "available on " + cfg.Interface
		}
		if err == nil {
			return l, Choice{BackendAFXDP, reason}, nil
		}
		if cfg.Backend == BackendAFXDP || errors.Is(err, ErrConfig) {
			return nil, Choice{}, err
		}
		reason = "afxdp is not available: " + err.Error()
	case cfg.Backend != BackendUDP:
		return nil, Choice{}, fmt.Errorf("%w: %v", ErrConfig, cfg.Backend)
	}
	l, err := OpenUDP(cfg.Local)
	return l, Choice{BackendUDP, reason}, err
}
