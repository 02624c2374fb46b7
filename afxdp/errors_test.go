// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestErrorTexts(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{
			&FrameError{Op: "send", Frame: 3, State: "in flight"},
			"afxdp: frame is not yours: send of frame 3, which is in flight",
		}, {
			&DescError{Desc: Desc{Frame: 3, Off: 256, Len: 7}, Reason: "shorter than an Ethernet header"},
			"afxdp: invalid descriptor: frame 3 offset 256 length 7: shorter than an Ethernet header",
		}, {
			&FeatureError{Feature: "TX metadata", Since: "6.8", Err: unix.EINVAL},
			"afxdp: TX metadata needs Linux 6.8 or later: invalid argument",
		}, {
			&FeatureError{Feature: "zero-copy on a", Since: "5.1", Needs: "a driver", Err: unix.EOPNOTSUPP},
			"afxdp: zero-copy on a needs Linux 5.1 or later and a driver: operation not supported",
		}, {
			&FeatureError{Feature: "zero-copy on a", Needs: "a driver", Remedy: "use another", Err: unix.EOPNOTSUPP},
			"afxdp: zero-copy on a needs a driver; use another: operation not supported",
		},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// The text of an errno has a remedy.
func TestExplanations(t *testing.T) {
	jumbo := &net.Interface{Name: "b", MTU: 3499}
	for name, c := range map[string]struct {
		got   error
		want  error
		words string
	}{
		"jumbo":              {explainAttach(unix.EDOM, AttachConfig{}, jumbo), ErrFrameTooSmall, "attach to b: MTU 3499 may need"},
		"jumbo, fragments":   {explainAttach(unix.EDOM, AttachConfig{MultiBuffer: true}, jumbo), unix.EDOM, "attach to b in auto mode: "},
		"not quite jumbo":    {explainAttach(unix.EDOM, AttachConfig{Mode: AttachGeneric}, &net.Interface{Name: "b", MTU: 3498}), unix.EDOM, "afxdp: attach to b in generic mode: "},
		"exists":             {explainAttach(unix.EEXIST, AttachConfig{}, jumbo), ErrProgramAttached, "on b: "},
		"load":               {explainLoad("do this", unix.EDOM), unix.EDOM, "afxdp: do this: "},
		"load, no privilege": {explainLoad("do this", unix.EPERM), ErrPermission, "privilege: do this needs"},
	} {
		if !errors.Is(c.got, c.want) || !strings.Contains(c.got.Error(), c.words) {
			t.Errorf("%s: %q, want %v and %q", name, c.got, c.want, c.words)
		}
	}
	s := &Socket{cfg: Config{Interface: "b", Queue: 3, BindTimeout: time.Second}}
	multi := &Socket{cfg: Config{Interface: "b", Queue: 3, MultiBuffer: true}}
	for name, c := range map[string]struct {
		s     *Socket
		errno unix.Errno
		want  error
		words string
	}{
		"busy":                {s, unix.EBUSY, ErrQueueBusy, "queue 3 of b was still taken after 1s"},
		"not supported":       {s, unix.EOPNOTSUPP, errors.ErrUnsupported, "zero-copy on b needs"},
		"gone":                {s, unix.ENODEV, ErrInterfaceGone, ": b: "},
		"down":                {s, unix.ENETDOWN, ErrLinkDown, ": b: "},
		"fragments":           {multi, unix.EINVAL, errors.ErrUnsupported, "multi-buffer on queue 3 of b needs Linux 6.6"},
		"invalid":             {s, unix.EINVAL, ErrNoQueue, "queue 3 of b; or"},
		"something":           {s, unix.EDOM, unix.EDOM, "afxdp: bind to queue 3 of b: "},
		"something, fragment": {multi, unix.EDOM, unix.EDOM, "afxdp: bind to queue 3 of b: "},
	} {
		err := c.s.explainBind(c.errno)
		if !errors.Is(err, c.want) || !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("bind, %s: %q, want %v and %q", name, err, c.want, c.words)
		}
	}
	if err := s.explainBind(nil); err != nil {
		t.Error(err)
	}
}
