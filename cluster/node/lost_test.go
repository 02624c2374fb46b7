// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
)

// loseWorker runs a worker that is interrupted after its first mini-batches.
func loseWorker(t *testing.T, c *cluster.Config, id uint16) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := RunWorker(ctx, Env{Config: c, Log: testLog(t).With("process", fmt.Sprint("worker ", id))},
		WorkerOptions{ID: id, Progress: func(train.Progress) { cancel() }})
	return err
}

// When an asynchronous job loses a worker, a checkpoint is written at once, and
// the server waits for the worker to join anew.
func TestLossOfAWorkerWritesACheckpoint(t *testing.T) {
	c := newCluster(t, 2)
	c.Job.Sync, c.Job.Harvest = false, time.Millisecond
	never := time.Duration(0)
	c.Server.CheckpointEvery = &never
	startSwitch(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := RunServer(ctx, Env{Config: c, Log: testLog(t).With("process", "ps")})
		ended <- err
	}()
	if err := loseWorker(t, c, 1); err == nil {
		t.Error("an interrupted worker ends well")
	}
	awaitFile(t, c.Server.Checkpoint, ended)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the server ended with %v", err)
	}
}

// What a lost worker of an asynchronous job was acknowledged is harvested at once, and
// in the checkpoint that its loss writes.
func TestLossOfAWorkerIsHarvested(t *testing.T) {
	c := newCluster(t, 2)
	c.Job.Sync, c.Job.Harvest, c.Job.HarvestFrames, c.Model.Epochs = false, time.Hour, 0, 1000
	never := time.Duration(0)
	c.Server.CheckpointEvery = &never
	startSwitch(t, c)
	conn, err := grpc.NewClient("passthrough:///"+c.Switch.Control.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := RunServer(ctx, Env{Config: c, Log: testLog(t).With("process", "ps")})
		ended <- err
	}()
	worker, lose := context.WithCancel(t.Context())
	defer lose()
	_, err = RunWorker(worker, Env{Config: c, Log: testLog(t).With("process", "worker 1")}, WorkerOptions{ID: 1, Progress: func(train.Progress) {
		st, err := pb.NewAggregatorClient(conn).Stats(t.Context(), &pb.StatsRequest{})
		if err != nil {
			t.Error(err)
		}
		if err != nil || st.Jobs[0].Counters["applied"] > 0 {
			lose()
		}
	}})
	if err == nil {
		t.Error("an interrupted worker ends well")
	}
	awaitFile(t, c.Server.Checkpoint, ended)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the server ended with %v", err)
	}
	trained, _ := saved(t, c)
	if n := changedHot(t, c, trained); n == 0 {
		t.Error("no hot weight has changed")
	}
}

// awaitFile waits for a file that a server writes.
func awaitFile(t *testing.T, path string, ended <-chan error) {
	t.Helper()
	for deadline := time.Now().Add(eventLimit); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		}
		select {
		case err := <-ended:
			t.Fatalf("the server ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("no checkpoint is written")
		}
	}
}

// changedHot counts the hot rows whose weights are not the initial ones.
func changedHot(t *testing.T, c *cluster.Config, trained *ps.Store) (changed int) {
	t.Helper()
	fresh, err := ps.New(trained.Config())
	if err != nil {
		t.Fatal(err)
	}
	dim := trained.Config().Dim
	hot, err := loadHotSet(c, dim)
	if err != nil {
		t.Fatal(err)
	}
	before, after := make([]float32, dim), make([]float32, dim)
	for r := range uint32(hot.Len()) {
		fresh.Read([]uint64{hot.Key(r)}, before)
		trained.Read([]uint64{hot.Key(r)}, after)
		if !slices.Equal(before, after) {
			changed++
		}
	}
	return changed
}

// A worker that does not join anew in time is given up: the others finish, and
// the server names it.
func TestLostWorkerIsNamed(t *testing.T) {
	c := newCluster(t, 2)
	c.Job.Sync, c.Job.Harvest, c.Server.Rejoin = false, time.Millisecond, 50*time.Millisecond
	startSwitch(t, c)
	ended := make(chan error, 1)
	go func() {
		_, err := RunServer(t.Context(), Env{Config: c, Log: testLog(t).With("process", "ps")})
		ended <- err
	}()
	if err := loseWorker(t, c, 1); err == nil {
		t.Error("an interrupted worker ends well")
	}
	if _, err := RunWorker(t.Context(), Env{Config: c, Log: testLog(t)}, WorkerOptions{ID: 2}); err != nil {
		t.Errorf("worker 2: %v", err)
	}
	err := <-ended
	// In between, on a busy machine: that it was not connected for the grace period.
	if err == nil || !strings.Contains(err.Error(), "worker 1 left before it had finished") || !strings.HasSuffix(err.Error(), ", and it did not join again within 50ms") {
		t.Errorf("the server ended with %v", err)
	}
}

// A server whose job an operator removes says so, in the words of the switch, whichever
// of its streams ends first.
func TestServerSaysThatItsJobWasRemoved(t *testing.T) {
	c := newCluster(t, 1)
	c.Server.Checkpoint = ""
	startSwitch(t, c)
	conn, err := grpc.NewClient("passthrough:///"+c.Switch.Control.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	operator := pb.NewAggregatorClient(conn)
	for range 10 {
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := RunServer(t.Context(), Env{Config: c, Log: testLog(t), Ready: func() { close(ready) }})
			ended <- err
		}()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatal(err)
		}
		if _, err := operator.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: uint32(c.Job.ID)}); err != nil {
			t.Fatal(err)
		}
		err := <-ended
		if err == nil || !strings.Contains(err.Error(), "lost job 5: switch daemon: ") || !strings.Contains(err.Error(), "was removed") || strings.Contains(err.Error(), "rpc error") || !errors.Is(err, control.ErrRemoved) {
			t.Errorf("the server ends with %v", err)
		}
	}
}
