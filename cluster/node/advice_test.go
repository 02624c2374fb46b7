// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// The operator is told once what to do about senders whose checksums a network card
// should have completed.
func TestAdviceOnPartialChecksums(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			advise(t.Context(), model, slog.New(slog.NewTextHandler(&out, nil)), time.Second)
		}()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if out.Len() > 0 {
			t.Errorf("a warning without a reason: %s", out.String())
		}
		e, err := wire.NewEnvelope(conformance.Host(0), conformance.Aggregator)
		if err != nil {
			t.Fatal(err)
		}
		frame := make([]byte, e.Len()+wire.HotLen(1))
		e.Seal(frame)
		conformance.PartialChecksum(frame)
		for range 3 {
			model.Process(frame, make([]byte, aggregator.MaxReply))
			time.Sleep(3 * time.Second)
		}
		<-ended
		if n := strings.Count(out.String(), "ethtool -K INTERFACE tx off"); n != 1 {
			t.Errorf("%d warnings with the remedy, want 1: %s", n, out.String())
		}
	})
}

// It ends with its context, and with the data plane.
func TestAdviceEnds(t *testing.T) {
	for name, test := range map[string]func(*aggregator.Model, context.CancelFunc) error{
		"context":    func(_ *aggregator.Model, cancel context.CancelFunc) error { cancel(); return nil },
		"data plane": func(m *aggregator.Model, _ context.CancelFunc) error { return m.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				model, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := false
				go func() {
					advise(ctx, model, slog.New(slog.DiscardHandler), time.Second)
					ended = true
				}()
				time.Sleep(2500 * time.Millisecond)
				synctest.Wait()
				if ended {
					t.Fatal("it ends by itself")
				}
				if err := test(model, cancel); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if !ended {
					t.Error("it goes on")
				}
			})
		})
	}
}
