package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/proc"
)

// server is the role of a port that sends every packet back.
type server struct {
	*port
}

func (s server) step() error {
	sock := s.sock.Load()
	if sock.Backlog() > 0 {
		if err := sock.Kick(); err != nil {
			return err
		}
	}
	if err := s.collect(true); err != nil {
		return err
	}
	descs, err := s.receive()
	if err != nil {
		return err
	}
	if len(descs) == 0 {
		want := afxdp.EventRx
		if sock.InFlight() > 0 {
			want |= afxdp.EventCompletion
		}
		return s.poll(want, -1)
	}
	for i, d := range descs {
		// A corrupt packet goes back too: the client then sees it.
		p, ok := s.check(s.pool.UMEM().Packet(d))
		if i == 0 && ok && p.calm {
			s.arrived(p)
		}
	}
	n, err := sock.Send(descs)
	s.sent += uint64(n)
	if err != nil {
		return s.giveBack(descs[n:], err)
	}
	// The TX ring has an entry for every frame, so all were taken.
	return sock.Kick()
}

func (s server) settled() bool {
	sock := s.sock.Load()
	return sock.Backlog() == 0 && sock.InFlight() == 0
}

func (s server) status() string {
	sock := s.sock.Load()
	return fmt.Sprintf("backlog %d, in flight %d, %d frames free", sock.Backlog(), sock.InFlight(), s.pool.Available())
}

// What the server's process is asked to do.
const (
	opAccount = "account" // come to rest and count
	opClose   = "close"   // close the socket of a queue while it is used; its port opens another
	opReopen  = "reopen"  // reopen the socket of a queue
	opStatus  = "status"  // say what the ports wait for
)

// request is a line to the server's process, reply its answer.
type request struct {
	ID    int    `json:"id"`
	Op    string `json:"op"`
	Queue int    `json:"queue"`
}

type reply struct {
	ID      int      `json:"id"`
	Error   string   `json:"error,omitempty"`
	Status  string   `json:"status,omitempty"`
	Account *Account `json:"account,omitempty"`
	Memory  Memory   `json:"memory,omitzero"`
}

// RunPeer is the process of the echo server: Run starts it with the arguments after
// Config.PeerCommand, in the namespace of its end. It is of no use by itself.
func RunPeer(args []string) error {
	flags := flag.NewFlagSet("peer", flag.ContinueOnError)
	ifname := flags.String("interface", "", "interface to serve")
	queues := flags.Int("queues", 1, "queues to serve")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("soak: peer: %w", err)
	}
	return serve(*ifname, *queues, os.Stdin, os.Stdout)
}

// serve runs until its input ends or a port fails.
func serve(ifname string, queues int, in io.Reader, out io.Writer) (err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	e, err := openEnd(ctx, ifname, queues, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	roles := make([]role, queues)
	for i, p := range e.ports {
		roles[i] = server{p}
	}
	ended := make(chan error, 1)
	go func() {
		ended <- e.run(ctx, func(fn func() error) error { return fn() }, roles)
		cancel(nil)
	}()
	if err := proc.AnnounceReady(out, nil); err != nil {
		return err
	}
	requests := make(chan request)
	go func() {
		defer close(requests)
		for scan := bufio.NewScanner(in); scan.Scan(); {
			var r request
			if json.Unmarshal(scan.Bytes(), &r) == nil {
				requests <- r
			}
		}
	}()
	var (
		answering sync.WaitGroup
		write     sync.Mutex
	)
	for {
		select {
		case r, ok := <-requests:
			if !ok {
				cancel(io.EOF)
				answering.Wait()
				return <-ended
			}
			// Each on its own: a status is asked for when another request hangs.
			answering.Go(func() {
				a := e.answer(ctx, r, roles)
				write.Lock()
				defer write.Unlock()
				_ = json.NewEncoder(out).Encode(a) // a parent that is gone asks no more
			})
		case err := <-ended:
			return err
		}
	}
}

// answerLimit bounds what the server's process does for one request.
const answerLimit = 30 * time.Second

// answer does what the parent process asks for.
func (e *end) answer(ctx context.Context, r request, roles []role) (a reply) {
	a.ID = r.ID
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var err error
	switch r.Op {
	case opAccount:
		a.Account, err = e.account(ctx, roles)
		if err == nil {
			a.Memory, err = takeMemory()
		}
	case opClose:
		err = e.ports[r.Queue].sock.Load().Close()
	case opReopen:
		err = e.ports[r.Queue].reopen(ctx)
	case opStatus:
		a.Status = e.status(ctx, roles)
	default:
		err = fmt.Errorf("soak: peer: no operation %q", r.Op)
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// reopen makes a port replace its kernel socket. A socket that was closed
// meanwhile is replaced anyway.
func (p *port) reopen(ctx context.Context) error {
	var err error
	if asked := p.ask(ctx, func() { err = p.sock.Load().Reopen(ctx) }); asked != nil {
		return asked
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
