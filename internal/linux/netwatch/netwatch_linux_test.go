// SPDX-License-Identifier: Apache-2.0

package netwatch

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// inNetwork runs fn in a new network namespace with a bridge "sw0", whose port is "a", and the
// port's other end "b".
func inNetwork(t *testing.T, fn func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	ns, err := testbed.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := errors.Join(ns.Veth(testbed.VethConfig{}), ns.Do(func() error {
		run(t, "ip link add dev sw0 type bridge; ip link set dev sw0 up; ip link set dev a master sw0; ip address add 192.0.2.1/24 dev a")
		fn()
		return nil
	})); err != nil {
		t.Fatal(err)
	}
}

// run runs commands in the thread's network namespace.
func run(t *testing.T, commands string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", commands).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", commands, err, out)
	}
}

// Each change that takes something away from the user is logged with a command that gives it back,
// and so is its end.
func TestRemediesWork(t *testing.T) {
	inNetwork(t, func() {
		var log bytes.Buffer
		i, err := Find("a", slog.New(slog.NewTextHandler(&log, nil)), Needs{MinMTU: 1400, MaxMTU: 2000, Bridge: true,
			Address: netip.MustParseAddr("192.0.2.1")})
		if err != nil {
			t.Fatal(err)
		}
		look := func() string {
			t.Helper()
			log.Reset()
			if _, err := i.Look(); err != nil {
				t.Fatal(err)
			}
			return log.String()
		}
		if said := look(); said != "" || i.Wrong() != "" {
			t.Errorf("without a change: %s, wrong: %s", said, i.Wrong())
		}
		remedy := regexp.MustCompile(`: (ip [^",;]*)`)
		for _, c := range []struct{ change, again string }{
			{"ip link set dev a mtu 1000", "large enough again"},
			{"ip link set dev a mtu 3000", "have room again"},
			{"ip link set dev a down", "is up again"},
			{"ip link set dev a name c", "its name again"},
			{"ip link set dev a nomaster", "in a bridge again"},
			{"ip address del 192.0.2.1/24 dev a", "has its address again"},
		} {
			run(t, c.change)
			said := look()
			found := remedy.FindStringSubmatch(said)
			if len(found) == 0 || !strings.Contains(said, "level=WARN") {
				t.Errorf("%s: no remedy: %s", c.change, said)
				continue
			}
			if i.Wrong() == "" || look() != "" {
				t.Errorf("%s: it is not known to be wrong, or logged twice", c.change)
			}
			run(t, found[1])
			if said := look(); !strings.Contains(said, c.again) || i.Wrong() != "" {
				t.Errorf("%s, then %s: %s, wrong: %s", c.change, found[1], said, i.Wrong())
			}
		}
		run(t, "ip link set dev b down")
		if said := look(); !strings.Contains(said, "look at the cable") {
			t.Errorf("without a carrier: %s", said)
		}
		run(t, "ip link set dev b up")
		if said := look(); !strings.Contains(said, "has its link again") {
			t.Errorf("with a carrier: %s", said)
		}
		i.Kept = "all is well"
		run(t, "ip link set dev a address 02:00:00:00:00:42")
		if said := look(); !strings.Contains(said, "all is well") || !strings.Contains(said, "now=02:00:00:00:00:42") {
			t.Errorf("another address: %s", said)
		}
	})
}

// An interface is followed by its index while it exists, and then by its name.
func TestFollowsAnInterface(t *testing.T) {
	inNetwork(t, func() {
		var log bytes.Buffer
		i, err := Find("a", slog.New(slog.NewTextHandler(&log, nil)), Needs{})
		if err != nil {
			t.Fatal(err)
		}
		i.After = "on we go"
		at := func(what string) State {
			t.Helper()
			s, err := i.Look()
			if err != nil {
				t.Fatal(what, err)
			}
			return s
		}
		first := at("at first").Index
		run(t, "ip link set dev a name c; ip link add dev a type bridge")
		if s := at("renamed"); s.Index != first || s.Name != "c" || i.Name() != "c" || i.Configured() != "a" {
			t.Errorf("renamed: %+v", s)
		}
		run(t, "ip link del dev a; ip link del dev c")
		if s := at("deleted"); s.Index != 0 || !strings.Contains(i.Wrong(), "the interface is gone") {
			t.Errorf("deleted: %+v", s)
		}
		run(t, "ip link add dev a type veth peer name b")
		if s := at("created"); s.Index == 0 || s.Index == first || s.Name != "a" || !strings.Contains(log.String(), "is back: on we go") {
			t.Errorf("created: %+v, %s", s, log.String())
		}
		second := i.State().Index
		run(t, "ip link del dev a; ip link add dev a type veth peer name b")
		if s := at("replaced"); s.Index == second || !strings.Contains(log.String(), "was replaced") {
			t.Errorf("replaced between two looks: %+v, %s", s, log.String())
		}
		if _, err := Find("nosuch", slog.Default(), Needs{}); !errors.Is(err, unix.ENODEV) {
			t.Errorf("no such interface: %v", err)
		}
	})
}

// A problem is logged once, again when it changes or is there again, and not any more when it is
// over.
func TestProblemsAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	i := &Interface{Log: slog.New(slog.NewTextHandler(&log, nil)), configured: "a", wrong: make(map[string]string)}
	for _, err := range []error{nil, errors.New("one"), errors.New("one"), errors.New("two"), nil, errors.New("two")} {
		i.Problem("it fails", err)
	}
	if n := strings.Count(log.String(), "it fails"); n != 3 {
		t.Errorf("logged %d times, want 3: %s", n, log.String())
	}
	if want := "a: it fails: two"; i.Wrong() != want {
		t.Errorf("wrong: %q, want %q", i.Wrong(), want)
	}
	if i.Problem("it fails", nil); i.Wrong() != "" {
		t.Errorf("when it is over, wrong: %q", i.Wrong())
	}
}

// A watch looks after each kind of change, once a second without any, and not after Close.
func TestWatchLooks(t *testing.T) {
	inNetwork(t, func() {
		var looks atomic.Int64
		w, err := Start(Everything, func() { looks.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		until := func(what string, n int64) {
			t.Helper()
			for end := time.Now().Add(time.Minute); looks.Load() < n; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("no look after %s", what)
				}
			}
		}
		until("a second", 1)
		for n, change := range []string{
			"ip link set dev b mtu 1300", "ip address add 192.0.2.7/24 dev b", "ip route add 198.51.100.0/24 dev b",
			"ip neigh add 192.0.2.9 dev b lladdr 02:00:00:00:00:01", "ip link del dev b",
		} {
			before := looks.Load()
			run(t, change)
			until(fmt.Sprint(n, change), before+1)
		}
		before := looks.Load()
		w.Look()
		until("a request", before+1)
		w.Close()
		w.Close()
		after := looks.Load()
		w.Look()
		time.Sleep(3 * minInterval)
		if looks.Load() != after {
			t.Error("a look after Close")
		}
	})
}
