// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/transport"
)

// replayBytes is the size of a worker's log, that of job.replay_mib.
const replayBytes = 16 << 20

// Marks go from the server to the workers as datagrams in a folder. In a job they go over the
// streams of the admissions, at most as often.

func marksPath(folder string, sender uint16) string {
	return filepath.Join(folder, fmt.Sprintf("worker-%d.marks", sender))
}

// tellMarks sends each worker its mark, at the server. One that has ended has no use for it.
func (c *serverConfig) tellMarks(marks []aggregator.Mark) error {
	for i := range marks {
		conn, err := net.Dial("unixgram", marksPath(c.Marks, marks[i].Sender))
		if errors.Is(err, unix.ECONNREFUSED) {
			continue
		}
		if err != nil {
			return err
		}
		err = binary.Write(conn, binary.BigEndian, &marks[i])
		if err := errors.Join(err, conn.Close()); err != nil {
			return err
		}
	}
	return nil
}

// startLogged is StartWorker for a worker with a log, if it is to have one. The caller calls end
// before it closes the worker.
func (c *childConfig) startLogged(ctx context.Context, client pb.AggregatorClient, cfg transport.WorkerConfig) (
	w *transport.Worker, end func() error, err error) {
	if c.Worker == nil || c.Worker.Marks == "" {
		w, err = c.StartWorker(ctx, client, cfg)
		return w, func() error { return nil }, err
	}
	name := net.UnixAddr{Name: marksPath(c.Worker.Marks, cfg.Sender), Net: "unixgram"}
	conn, err := net.ListenUnixgram(name.Net, &name)
	if err != nil {
		return nil, nil, err
	}
	cfg.Replay = replayBytes
	if w, err = c.StartWorker(ctx, client, cfg); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	committed := make(chan error, 1)
	go func() { committed <- commitAll(ctx, conn, w) }()
	return w, func() error { return errors.Join(conn.Close(), <-committed) }, nil
}

// commitAll tells a worker each of its marks, until the socket is closed.
func commitAll(ctx context.Context, conn *net.UnixConn, w *transport.Worker) error {
	var mark aggregator.Mark
	datagram := make([]byte, binary.Size(&mark))
	for {
		_, err := conn.Read(datagram)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err == nil {
			_, err = binary.Decode(datagram, binary.BigEndian, &mark)
		}
		if err == nil {
			err = w.Committed(ctx, mark)
		}
		if err != nil {
			return fmt.Errorf("marks: %w", err)
		}
	}
}
