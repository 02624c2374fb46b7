package soak

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/bench/child"
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
	s.counts.Sent += uint64(n)
	if err != nil {
		return s.giveBack(descs[n:], err)
	}
	// The TX ring has an entry for every frame, so all were taken.
	return sock.Kick()
}

// Requests to the server's process.
const (
	opAccount = "account" // come to rest and count
	opStatus  = "status"  // describe what the ports wait for
	opClose   = "close"   // close the socket of a queue while it is used; its port opens another
	opReopen  = "reopen"  // reopen the socket of a queue
)

// answerLimit bounds what the server's process does for one request.
const answerLimit = 30 * time.Second

// serverConfig is what the server's process is told.
type serverConfig struct {
	Interface string
	Queues    int
}

// RunChild is the process of the echo server: Run starts it with an argument
// after Config.ChildCommand, in the namespace of its end.
func RunChild(args []string) error { return child.Main(args, serve) }

// serve runs until the process is told to end or a port fails.
func serve(ctx context.Context, c serverConfig) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e, err := openEnd(ctx, c.Interface, c.Queues, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	for _, p := range e.ports {
		p.role = server{p}
	}
	ended := make(chan error, 1)
	go func() {
		err := e.run(ctx, func(fn func() error) error { return fn() })
		ended <- err
		cancel(err)
	}()
	err = child.Serve(ctx, func(ctx context.Context, op string, arg json.RawMessage) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		var queue int // 0 for requests without
		if len(arg) > 0 {
			if err := json.Unmarshal(arg, &queue); err != nil {
				return nil, err
			}
		}
		return e.answer(ctx, op, queue)
	})
	cancel(nil)
	if failed := <-ended; failed != nil {
		err = failed // the reason why Serve returned, or what went wrong since
	}
	return err
}

// answer does what the parent process asks for.
func (e *end) answer(ctx context.Context, op string, queue int) (any, error) {
	switch op {
	case opAccount:
		a, err := e.account(ctx)
		if err == nil {
			a.PID = os.Getpid()
			a.Memory, err = takeMemory()
		}
		return a, err
	case opStatus:
		return e.status(ctx), nil
	case opClose:
		return nil, e.ports[queue].sock.Load().Close()
	case opReopen:
		return nil, e.ports[queue].reopen(ctx)
	}
	return nil, child.Unknown(op)
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
