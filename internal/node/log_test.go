package node

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// lines collects what processes log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Each process says at its start over what its frames go.
func TestProcessesNameTheirBackend(t *testing.T) {
	c := newCluster(t, 1)
	var all lines
	startSwitchWith(t, c, all.logger())
	if err := trainWith(t.Context(), c, hooks{}, all.logger()).err(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`msg="aggregator serves" process=switch data_plane="go model over udp"`,
		`msg="parameter server serves" process=ps backend=udp`,
		`msg="worker trains" process="worker 1" worker=1 backend=udp`,
	} {
		if !strings.Contains(all.text.String(), want) {
			t.Errorf("%s is not in the log:\n%s", want, &all.text)
		}
	}
}
