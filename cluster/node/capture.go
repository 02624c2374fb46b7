// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/link/capture"
)

// offerCapture lets 'libra capture' see the frames that a process's link sends and receives, and
// records them into a file if the configuration asks for it. The returned function ends both; close
// the link first.
func offerCapture(env Env, l link.Link, process string, h cluster.Host) (end func() error, err error) {
	if env.Machine.Link != nil {
		return func() error { return nil }, nil
	}
	tap := link.TapOf(l)
	src := capture.Source{
		Process: process, PID: os.Getpid(),
		Backend: env.Config.Backend, Interface: h.Interface,
		Address: netip.AddrPortFrom(h.Address, env.Config.Port),
		Rebuilt: env.Config.Backend == cluster.BackendUDP,
	}
	var recording *capture.Recording
	if dir := env.Config.Capture; dir != "" {
		file := filepath.Join(dir, strings.ReplaceAll(process, " ", "-")+".pcapng")
		if recording, err = capture.Record(file, tap, src); err != nil {
			return nil, fmt.Errorf("%w (field capture of the cluster configuration)", err)
		}
	}
	// Training does not depend on it.
	server, err := capture.Serve(tap, src, env.Log)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		env.Log.Warn("'libra capture' will not find this process", "error", err)
	}
	return func() error {
		var err error
		if server != nil {
			err = server.Close()
		}
		if recording != nil {
			result, failed := recording.Close()
			err = errors.Join(err, failed)
			env.Log.Info("capture written", "frames", result.Frames, "dropped", result.Dropped)
		}
		return err
	}, nil
}
