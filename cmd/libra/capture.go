// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/link/capture"
)

func newCapture() *cobra.Command {
	var (
		o            captureOptions
		list, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "capture --pid PID [--out FILE]",
		Short: "Record what a running worker or parameter server sends and receives, as pcapng",
		Long: `Attaches to a running 'libra worker' or 'libra ps' and writes the frames that its
socket sends and receives until Ctrl-C, --count, --duration or the end of the
process. The process keeps running; AF_XDP sockets bypass the kernel's own taps, so
tcpdump does not see these frames.

The frames are those on the wire: complete, with timestamps and direction, below
the faults that --loss and similar flags inject, and including those that the
process discards. With the udp backend only payloads are visible, and headers are
synthesised. If the disk or the reader is too slow, frames are dropped from the
capture, never delayed; the file counts them.

It needs the same user or root; root to capture a process in another network
namespace, as the demo's are. Up to eight captures of a process may run at the same
time. The file's comment explains how to decode it with wire/libra.lua.`,
		Example: `  libra capture --list
  libra capture --pid 4711 --out worker.pcapng
  libra capture --pid 4711 --count 1000 | tshark -X lua_script:wire/libra.lua -r -
  libra capture --pid 4711 --duration 10s | wireshark -X lua_script:wire/libra.lua -k -i -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case list && cmd.Flags().Changed("pid"):
				return usagef(cmd, "--list and --pid exclude each other")
			case list:
				return listCaptures(cmd.OutOrStdout(), asJSON)
			case asJSON:
				return usagef(cmd, "--json goes with --list")
			case !cmd.Flags().Changed("pid"):
				return usagef(cmd, "--pid is required: the number of a process; --list shows which there are")
			case o.duration < 0:
				return usagef(cmd, "--duration %v is negative", o.duration)
			case o.out == "-" && term.IsTerminal(int(os.Stdout.Fd())):
				return usagef(cmd, "standard output is a terminal: give --out FILE, or pipe into tshark -r -")
			}
			return runCapture(cmd.Context(), cmd.OutOrStdout(), o)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.pid, "pid", 0, "process to capture")
	f.StringVarP(&o.out, "out", "o", "-", "`file` to write, - is standard output")
	f.Uint64VarP(&o.count, "count", "c", 0, "frames after which to stop (default: no limit)")
	f.DurationVar(&o.duration, "duration", 0, "time after which to stop (default: no limit)")
	f.BoolVar(&list, "list", false, "show the processes that can be captured")
	f.BoolVar(&asJSON, "json", false, "with --list: print one JSON object")
	return cmd
}

type captureOptions struct {
	pid      int
	out      string
	count    uint64
	duration time.Duration
}

func runCapture(ctx context.Context, stdout io.Writer, o captureOptions) (err error) {
	session, err := capture.Attach(o.pid)
	if err != nil {
		return err
	}
	defer session.Close()
	out := stdout
	if o.out != "-" {
		file, failed := os.Create(o.out)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		out = file
	}
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	slog.Info("capturing", "from", session.Source())
	r, err := session.Save(ctx, out, o.count)
	slog.Info("captured", "frames", r.Frames, "dropped", r.Dropped)
	if r.Ended {
		slog.Warn("the process broke off; its last frames may be missing")
	}
	return err
}

// CaptureList is the JSON object of 'libra capture --list'.
type CaptureList struct {
	Processes []capture.Source `json:"processes"`
}

func listCaptures(w io.Writer, asJSON bool) error {
	all, err := capture.List()
	if err != nil {
		return err
	}
	if asJSON {
		return report.WriteJSON(w, CaptureList{all})
	}
	if len(all) == 0 {
		hint := ""
		if os.Geteuid() != 0 {
			hint = "; root also sees other users' and those in other network namespaces"
		}
		_, err := fmt.Fprintf(w, "no process can be captured: 'libra worker' and 'libra ps' can while they run%s\n", hint)
		return err
	}
	var rows [][]any
	for _, s := range all {
		rows = append(rows, []any{s.PID, s.Process, s.Backend, s.Interface, s.Address})
	}
	return report.Table(w, []string{"PID", "process", "backend", "interface", "address"}, rows)
}
