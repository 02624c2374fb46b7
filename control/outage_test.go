// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// A sender that has not got the answer, because its link went down, asks again, and gets the
// admission that it has, whether the service has noticed or not. Another attempt is that of a
// restarted sender.
func TestJoinIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		l.create(t, spec())
		req := joinRequest()
		req.Attempt = []byte("one")
		_, first, err := joinAs(t.Context(), l.client, req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.client.Check(t.Context(), req); err != nil {
			t.Errorf("its question: %v", err)
		}
		stream, again, err := joinAs(t.Context(), l.client, req)
		if err != nil || again.Epoch != first.Epoch || !bytes.Equal(again.Token, first.Token) {
			t.Fatalf("%v, %v, want %v", again, err, first)
		}
		l.host.Vanish()
		synctest.Wait()
		_ = stream
		host := l.dial(t, access.Security{}, workerIP.String())
		client := pb.NewAggregatorClient(host)
		if _, again, err = joinAs(t.Context(), client, req); err != nil || again.Epoch != first.Epoch {
			t.Fatalf("after its connection broke: %v, %v, want %v", again, err, first)
		}
		req.Attempt = []byte("two")
		_, _, err = joinAs(t.Context(), client, req)
		wants(t, "another attempt", err, codes.AlreadyExists, "worker 1 is already in the job")
		host.Vanish()
		synctest.Wait()
		_, other, err := joinAs(t.Context(), l.dialAgain(t), req)
		if err != nil || other.Epoch == first.Epoch {
			t.Errorf("a restarted sender: %v, %v", other, err)
		}
	})
}

// dialAgain connects from the sender's host.
func (l *libras) dialAgain(t *testing.T) pb.AggregatorClient {
	return pb.NewAggregatorClient(l.dial(t, access.Security{}, workerIP.String()))
}

// A job whose owner's link goes down before it holds the job waits for it.
func TestJobWaitsForItsFirstHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job, err := CreateJob(t.Context(), l.client, spec(), 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(access.Outage + DefaultLease - time.Millisecond)
		if err := job.Hold(t.Context(), func(err error) { t.Errorf("lost: %v", err) }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
	})
}
