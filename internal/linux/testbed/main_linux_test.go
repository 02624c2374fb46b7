// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary run as another process; see roleMain.
const roleEnv = "TESTBED_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(roleMain(role))
	}
	os.Exit(m.Run())
}

func roleMain(role string) int {
	switch role {
	case "sleep": // prints its namespace, then stays
		ns, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			return 1
		}
		fmt.Println(ns)
		time.Sleep(time.Hour)
	case "build": // builds a bed with a child in each host, then stays
		bed, err := New(context.Background(), Config{Hosts: 2})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		for _, host := range bed.Hosts() {
			cmd := self("sleep")
			if err := host.Start(cmd); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			fmt.Println(cmd.Process.Pid)
		}
		time.Sleep(time.Hour)
	}
	return 2
}

func self(role string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// requirePrivileges skips a test if no bed can be built.
func requirePrivileges(t *testing.T) {
	t.Helper()
	if err := checkCapabilities(); err != nil {
		t.Skip(err)
	}
}

func newBed(t *testing.T, cfg Config) *Bed {
	t.Helper()
	requirePrivileges(t)
	bed, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bed.Close(); err != nil {
			t.Error(err)
		}
	})
	return bed
}

// startLine starts cmd and returns the first line that it prints.
func startLine(t *testing.T, cmd *exec.Cmd, start func(*exec.Cmd) error) string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := start(cmd); err != nil {
		t.Fatal(err)
	}
	return readLine(t, bufio.NewReader(out))
}

func readLine(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	line, err := r.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

// observer watches namespaces without keeping them alive: the kernel forgets a
// namespace's number (rtnetlink "nsid") when the namespace is destroyed.
type observer struct {
	ns     *Namespace
	handle *netlink.Handle
	next   int
}

func newObserver(t *testing.T) *observer {
	t.Helper()
	ns := newNamespace(t)
	handle, err := ns.handle()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(handle.Close)
	return &observer{ns: ns, handle: handle}
}

// watch numbers the namespace of a descriptor.
func (o *observer) watch(t *testing.T, fd int) {
	t.Helper()
	o.next++
	if err := o.handle.SetNetNsIdByFd(fd, o.next); err != nil {
		t.Fatalf("number a namespace: %v", err)
	}
}

// living counts the numbered namespaces that still exist.
func (o *observer) living(t *testing.T) int {
	t.Helper()
	count := 0
	err := o.ns.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_GETNSID, unix.NLM_F_DUMP)
		req.AddData(nl.NewRtGenMsg())
		msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNSID)
		count = len(msgs)
		return err
	})
	if err != nil {
		t.Fatalf("list namespaces: %v", err)
	}
	return count
}

// waitNone waits until the kernel has destroyed every watched namespace, which
// it does in a work queue.
func (o *observer) waitNone(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for o.living(t) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d namespaces still exist", o.living(t), o.next)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// machineLinks returns the names of the interfaces in the test's own namespace.
func machineLinks(t *testing.T) []string {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, link := range links {
		names = append(names, link.Attrs().Name)
	}
	return names
}
