package engine

import (
	"context"
	"errors"
	"os/exec"

	"github.com/libra-ina/libra/bench/baselines"
)

// testpmdCommand is DPDK's test program.
const testpmdCommand = "dpdk-testpmd"

// installTestpmd says how to get testpmd with the driver. Debian 12's DPDK comes without.
const installTestpmd = "scripts/dpdk.sh builds and installs it on Debian; elsewhere build DPDK with libxdp-dev installed (meson setup -Denable_drivers=net/af_xdp,net/af_packet,mempool/ring,bus/vdev -Denable_apps=test-pmd) " +
	"and put dpdk-testpmd in the PATH"

// findPeers finds out which peers can run, and builds the C program.
func (h *harness) findPeers(ctx context.Context) error {
	for _, p := range h.cfg.Peers {
		reason, install := "", ""
		switch p {
		case PeerLibxdp:
			var err error
			if h.xdp, err = baselines.XDP.Build(ctx); err != nil {
				if !errors.Is(err, baselines.ErrBuild) {
					return err
				}
				reason, install = err.Error(), baselines.XDP.Install
			}
		case PeerAFPacket:
			if !hasAFPacket {
				reason = "this program was built without cgo, which gopacket's afpacket needs"
				install = "CGO_ENABLED=1 go build, with a C compiler"
			}
		case PeerDPDKAFXDP, PeerDPDKAFPacket:
			if _, err := exec.LookPath(testpmdCommand); err != nil {
				reason, install = err.Error(), installTestpmd
			}
		}
		if reason != "" {
			h.report.Unavailable = append(h.report.Unavailable, Unavailable{Peer: p, Reason: reason, Install: install})
			continue
		}
		h.peers = append(h.peers, p)
	}
	return nil
}
