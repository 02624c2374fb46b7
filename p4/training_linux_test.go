// SPDX-License-Identifier: Apache-2.0

package p4_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/p4"
	"github.com/libra-ina/libra/ps"
)

// runSwitch makes the test binary run as simple_switch_grpc.
const runSwitch = "LIBRA_TEST_RUN_SWITCH"

// TestMain makes the test binary run as one of the demo's processes, if it is started as one.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(runSwitch) != "":
		fmt.Fprintln(os.Stderr, simpleSwitch(os.Args[1:]))
		os.Exit(1)
	case len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-"):
		if err := process(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// process is libra switch, libra ps or libra worker, as the demo starts them.
func process(command string, args []string) error {
	var id uint
	var index int
	var config string
	f := flag.NewFlagSet(command, flag.ContinueOnError)
	f.StringVar(&config, "config", "", "")
	f.UintVar(&id, "id", 0, "")
	f.IntVar(&index, "index", 0, "")
	f.Bool("json", true, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	c, err := cluster.Read(config)
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer cancel()
	env := node.Env{Config: c, Server: index, Log: slog.Default(), Ready: func() { _ = proc.AnnounceReady(os.Stdout, os.Getpid()) }}
	var result any
	switch command {
	case "switch":
		return node.RunSwitch(ctx, env)
	case "ps":
		result, err = node.RunServer(ctx, env)
	case "worker":
		result, err = node.RunWorker(ctx, env, node.WorkerOptions{ID: uint16(id)})
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"result": result})
}

// simpleSwitch runs a [p4.Switch] with the arguments of simple_switch_grpc that
// testbed.SimpleSwitch gives it.
func simpleSwitch(args []string) error {
	ports := make(map[uint16]string)
	address := ""
	f := flag.NewFlagSet("simple_switch_grpc", flag.ContinueOnError)
	f.Func("i", "PORT@INTERFACE", func(s string) error {
		var number uint16
		var name string
		_, err := fmt.Sscanf(s, "%d@%s", &number, &name)
		ports[number] = name
		return err
	})
	f.Bool("no-p4", false, "")
	f.Int("device-id", 0, "")
	f.String("log-level", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	g := flag.NewFlagSet("simple_switch_grpc --", flag.ContinueOnError)
	g.StringVar(&address, "grpc-server-addr", "", "")
	g.Int("cpu-port", 0, "")
	if err := g.Parse(f.Args()); err != nil {
		return err
	}
	s := p4.NewSwitch()
	stop, err := s.Serve(strings.TrimPrefix(address, "unix:"))
	if err != nil {
		return err
	}
	defer stop()
	return runPorts(s, ports)
}

// runPorts passes received frames of interfaces through a switch, and sends its output, until an
// interface fails. It does not support VLAN tags.
func runPorts(f *p4.Switch, ports map[uint16]string) error {
	sockets := make(map[uint16]int)
	for number, name := range ports {
		fd, err := openPort(name)
		if err != nil {
			return fmt.Errorf("port %d: interface %s: %w", number, name, err)
		}
		defer unix.Close(fd)
		sockets[number] = fd
	}
	failed := make(chan error, len(ports))
	for number, fd := range sockets {
		go func() {
			buf := make([]byte, 1<<16)
			for {
				n, err := unix.Read(fd, buf)
				if errors.Is(err, unix.EINTR) {
					continue
				}
				if err != nil {
					failed <- fmt.Errorf("port %d: %w", number, err)
					return
				}
				for _, out := range f.Process(number, buf[:n]) {
					if to, ok := sockets[out.Port]; ok {
						_, _ = unix.Write(to, out.Data) // a full queue loses frames, as switches do
					}
				}
			}
		}()
	}
	return <-failed
}

// openPort opens a packet socket for an interface's received frames.
func openPort(name string) (int, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return 0, err
	}
	return fd, errors.Join(
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index}),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
	)
}

// The complete training, with Libra's own switch in place of bmv2: the demo's weights are those of
// one process.
func TestTrainingOnASimulatedSwitch(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the demo's namespaces need root")
	}
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec %q \"$@\"\n", runSwitch, os.Args[0])
	if err := os.WriteFile(filepath.Join(dir, "simple_switch_grpc"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	var rows strings.Builder
	rng := rand.New(rand.NewPCG(4, 4))
	for range 256 {
		fmt.Fprintf(&rows, "%d %d:1 %d:1\n", rng.IntN(2), rng.IntN(40), 40+rng.IntN(200))
	}
	data := filepath.Join(dir, "rows.libfm")
	if err := os.WriteFile(data, []byte(rows.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := demo.Run(t.Context(), demo.Options{
		Plane: cluster.PlaneP4, Backend: cluster.BackendAFXDP, Data: data, Model: "lr", Task: "classification", Workers: 2, Epochs: 1, Batch: 16,
		Sync: true, Arithmetic: "exact", Optimizer: ps.Adagrad.String(), Seed: 1, Baselines: []string{demo.OneProcess}, Stderr: io.Discard, Log: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.WeightsSHA256 != r.ReferenceSHA256 || len(r.WeightsSHA256) != 64 {
		t.Errorf("weights %s, reference %s", r.WeightsSHA256, r.ReferenceSHA256)
	}
	if r.Plane != cluster.PlaneP4 || r.HotPairs == 0 || r.FramesSaved <= 0 {
		t.Errorf("the switch did not aggregate: %+v", r)
	}
}
