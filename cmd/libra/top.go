// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/telemetry/export"
	"github.com/libra-ina/libra/telemetry/verdict"
)

const (
	topEvery = time.Second
	// topAnswer is how long a process may take to answer: a stopped one takes the connection and says
	// nothing.
	topAnswer = 2 * time.Second
	// topOnce is the time of a single report: the verdict's window.
	topOnce = 5 * time.Second
)

func newTop() *cobra.Command {
	var (
		config       string
		asJSON, once bool
		duration     time.Duration
	)
	cmd := &cobra.Command{
		Use:   "top --config FILE",
		Short: "Show every second what the processes of a cluster do, and which of them is slow",
		Long: `Reads each second what the processes of a cluster file show at the file's telemetry.port,
until Ctrl-C or for --for. It prints a line for each process, and a verdict: which process does
not answer; else which worker, server, switch or link makes the others wait, and by what; else the
largest part of a frame's time. Values are means of the last five seconds.

With TLS, it needs a certificate for libra://operator in the file's tls section.`,
		Example: `  libra top --config cluster.yaml
  libra top --config cluster.yaml --once
  libra top --config cluster.yaml --json --for 1m`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if once && duration > 0 {
				return usagef(cmd, "--once and --for exclude each other")
			}
			c, err := readShown(cmd, config)
			if err != nil {
				return err
			}
			t, err := newTopView(c, cmd.OutOrStdout(), asJSON)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			if once {
				duration, t.once = topOnce, true
			}
			if duration > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, duration)
				defer cancel()
			}
			return t.runView(ctx)
		},
	}
	f := cmd.Flags()
	f.StringVar(&config, "config", "", "cluster configuration `file`")
	f.BoolVar(&asJSON, "json", false, "print a JSON object each second")
	f.BoolVar(&once, "once", false, "print one report, after five seconds")
	f.DurationVar(&duration, "for", 0, "time after which to stop (default: no limit)")
	return cmd
}

// TopLine is what 'libra top --json' prints each second.
type TopLine struct {
	Time time.Time `json:"time"`
	verdict.Report
}

// topView follows the processes of a cluster.
type topView struct {
	jobs    []uint16 // of the shares of the hot set
	clients []*export.Client
	names   []verdict.Process
	out     io.Writer
	json    bool
	screen  bool // the output is a terminal
	once    bool // only the last report is printed

	mu    sync.Mutex
	judge *verdict.Judge
}

func newTopView(c *cluster.Config, out io.Writer, asJSON bool) (*topView, error) {
	security, err := access.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key)
	if err != nil {
		return nil, err
	}
	t := &topView{jobs: c.Job.HotIDs(), out: out, json: asJSON}
	if file, ok := out.(*os.File); ok && !asJSON {
		t.screen = term.IsTerminal(int(file.Fd()))
	}
	for i, p := range c.Processes() {
		t.names = append(t.names, topProcess(c, i))
		t.clients = append(t.clients, export.NewClient(export.Source{Name: p.Name, At: p.At}, security, topAnswer))
	}
	return t, nil
}

// topProcess names the process at a place of [cluster.Config.Processes].
func topProcess(c *cluster.Config, i int) verdict.Process {
	if i == 0 {
		return verdict.Process{Role: verdict.Switch}
	}
	if i--; i < len(c.Standbys) {
		return verdict.Process{Role: verdict.Standby, ID: i}
	}
	i -= len(c.Standbys)
	more := c.MoreSwitches()
	if i < len(more) {
		return verdict.Process{Role: verdict.Switch, Of: c.Switches[more[i]].Name}
	}
	i -= len(more)
	servers := len(c.AllServers())
	if i < servers {
		return verdict.Process{Role: verdict.Server, ID: i}
	}
	return verdict.Process{Role: verdict.Worker, ID: int(c.Workers[i-servers].ID)}
}

// runView follows the processes until ctx ends.
func (t *topView) runView(ctx context.Context) error {
	t.judge = verdict.NewJudge(t.names, time.Now())
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	var readers sync.WaitGroup
	defer readers.Wait()
	defer stop()
	for i := range t.clients {
		readers.Go(func() { t.followProcess(reading, i) })
	}
	tick := time.NewTicker(topEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			if t.once && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return t.printView(time.Now())
			}
			return nil
		case now := <-tick.C:
			if t.once {
				continue
			}
			if err := t.printView(now); err != nil {
				return err
			}
		}
	}
}

// followProcess reads a process once a second. One that does not answer holds up nobody else.
func (t *topView) followProcess(ctx context.Context, i int) {
	defer t.clients[i].Close()
	tick := time.NewTicker(topEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		t.readProcess(ctx, i)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// readProcess reads a process.
func (t *topView) readProcess(ctx context.Context, i int) {
	var s *verdict.Scrape
	err := t.clients[i].Get(ctx, "/metrics", func(r io.Reader) (err error) {
		s, err = verdict.Parse(r, t.jobs...)
		return err
	})
	at := time.Now() // one that was stopped answers late, with what is of then
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.judge.Note(t.names[i], at, s)
	} else {
		t.judge.Fail(t.names[i], reasonOf(err))
	}
}

// reasonOf shortens why a process did not answer; that it says nothing needs no reason.
func reasonOf(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.As(err, &timeout) && timeout.Timeout():
		return ""
	}
	return err.Error()
}

func (t *topView) printView(now time.Time) error {
	t.mu.Lock()
	r := t.judge.Report(now)
	t.mu.Unlock()
	if t.json {
		return report.WriteJSON(t.out, TopLine{now, r})
	}
	const clear = "\x1b[H\x1b[2J"
	if t.screen {
		if _, err := io.WriteString(t.out, clear); err != nil {
			return err
		}
	}
	var rows [][]any
	for _, l := range r.Processes {
		rows = append(rows, topRow(l))
	}
	out := report.NewPrinter(t.out)
	header := []string{"", "per s", "total", "queue", "process", "network", "repeated", "loop busy", "hot"}
	out.Table(now.Format(time.TimeOnly), header, rows)
	for _, f := range r.Verdict {
		out.Line(f.Text)
	}
	out.Line("")
	return out.Err()
}

// topRow is a process's row of the table. What is not known is empty.
func topRow(l verdict.Line) []any {
	row := []any{l.Name, fmt.Sprintf("%.0f", l.Rate)}
	for _, d := range []time.Duration{l.Total, l.Queue, l.Process, l.Network} {
		text := ""
		if d > 0 {
			text = verdict.Millis(d)
		}
		row = append(row, text)
	}
	for _, share := range []float64{l.Repeated, l.Busy} {
		text := ""
		if share > 0 {
			text = fmt.Sprintf("%.1f %%", 100*share)
		}
		row = append(row, text)
	}
	hot := ""
	if l.Hot > 0 || l.HotSet > 0 { // none of a hot set that once had some is what one looks for
		hot = fmt.Sprintf("%.0f %%", 100*l.Hot)
		if l.HotSet > 0 {
			hot += fmt.Sprintf(" (%.0f %%)", 100*l.HotSet)
		}
	}
	return append(row, hot)
}
