package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/libra-ina/libra/internal/proc"
)

// errTold is why the context of a child ends that was told to end.
var errTold = errors.New("child: told to end")

// Main is the body of a child's hidden command: it moves the process to its CPU
// and calls run with the configuration that [Start] appended to the arguments.
// ctx ends on SIGTERM; run may then return [context.Cause] of it or nil.
func Main[C any](args []string, run func(ctx context.Context, c C) error) error {
	var s settings[C]
	if len(args) == 0 || json.Unmarshal([]byte(args[len(args)-1]), &s) != nil {
		return errors.New("child: this command is for a benchmark to call, with a configuration in JSON")
	}
	if s.CPU != nil {
		if err := pin(*s.CPU); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	go func() {
		<-terminate
		cancel(errTold)
	}()
	if err := run(ctx, s.Config); !errors.Is(err, errTold) {
		return err
	}
	return nil
}

// Handler does what a request asks for and returns the answer's value. Requests
// are handled concurrently. ctx ends when the child is told to end, and with the
// context of [Serve].
type Handler func(ctx context.Context, op string, arg json.RawMessage) (any, error)

// Unknown is a [Handler]'s error for a request that it does not know.
func Unknown(op string) error { return fmt.Errorf("child: no operation %q", op) }

// Serve announces that the child is ready and answers requests. It returns when
// all handlers have, nil after the end of standard input or SIGTERM, else the
// cause of ctx's end.
func Serve(ctx context.Context, handle Handler) error { return serve(ctx, os.Stdin, os.Stdout, handle) }

func serve(ctx context.Context, in io.Reader, out io.Writer, handle Handler) error {
	if err := proc.AnnounceReady(out, true); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	requests := make(chan request)
	go func() {
		defer cancel(errTold)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			var r request
			if json.Unmarshal(lines.Bytes(), &r) != nil {
				continue // the parent gives up what is not answered
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	var (
		answering sync.WaitGroup
		writing   sync.Mutex // one line at a time
	)
	for {
		select {
		case r := <-requests:
			// On a goroutine of its own: the parent may ask what another request
			// waits for.
			answering.Go(func() {
				a := respond(ctx, r, handle)
				writing.Lock()
				defer writing.Unlock()
				_ = json.NewEncoder(out).Encode(a) // a parent that is gone needs no answer
			})
		case <-ctx.Done():
			answering.Wait()
			if cause := context.Cause(ctx); !errors.Is(cause, errTold) {
				return cause
			}
			return nil
		}
	}
}

func respond(ctx context.Context, r request, handle Handler) answer {
	value, err := handle(ctx, r.Op, r.Arg)
	var text []byte
	if err == nil {
		text, err = json.Marshal(value)
	}
	if err != nil {
		return answer{ID: r.ID, Error: err.Error()}
	}
	return answer{ID: r.ID, Value: text}
}
